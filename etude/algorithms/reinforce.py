"""REINFORCE (PG, policy gradient): Monte Carlo returns of whole episodes, with or without a baseline.

Williams 1992, Simple statistical gradient-following algorithms, doi:10.1007/BF00992696; the baseline of states as in
Sutton & Barto 2018, section 13.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import EpisodesConfig
from etude.losses.policy import policy_gradient, standardise
from etude.networks import Maker, Mlp, Normaliser, Part, Spec


@dataclass(frozen=True)
class ReinforceConfig(EpisodesConfig, StochasticPolicyConfig):
    """Hyperparameters of REINFORCE, besides those of every algorithm that learns from whole episodes."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # policy and baseline networks
    learning_rate: float | Linear = 3e-3
    max_gradient_norm: float | None = 0.5
    baseline: bool = True  # subtract a learned state value from returns
    value_coefficient: float = 0.5  # coefficient of the baseline's loss
    entropy_coefficient: float | Linear = 0.0  # entropy coefficient of the loss
    normalize_advantage: bool = True  # standardise advantages in every batch
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "value_coefficient")


class Reinforce(Agent):
    """A stochastic policy, trained on the returns of whole episodes."""

    learns_from = "episodes"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = self.policy.make(make, self.config.actor_network, self.config.initial_log_std)
        if self.config.baseline:
            self.model["critic"] = make(self.config.critic_network, spaces.observation, outputs=1)

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        """The baseline; without one, 0."""
        seen = self.normaliser(observation)
        return self.model["critic"](seen)[:, 0] if self.config.baseline else 0.0 * self.model["policy"](seen)[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, policy, weight = self.config, self.act(batch.observation), batch.weight
        value = self.value(batch.observation)
        advantage = batch.extras["return"] - ops.stop_gradient(value)
        if config.normalize_advantage:
            advantage = standardise(advantage, weight)
        policy_loss = ops.mean(weight * policy_gradient(policy.log_prob(batch.sampled_action), advantage))
        value_loss = ops.mean(weight * ops.square(value - batch.extras["return"]))
        entropy = ops.mean(weight * policy.entropy())
        loss = policy_loss - config.entropy_coefficient * entropy
        metrics = {"policy_loss": policy_loss, "entropy": entropy}
        if config.baseline:
            loss, metrics = loss + config.value_coefficient * value_loss, {**metrics, "value_loss": value_loss}
        return Losses(model=Loss(loss, **metrics))
