"""Advantage actor-critic, synchronous.

Mnih et al. 2016, Asynchronous methods for deep reinforcement learning, arXiv:1602.01783, section 4 and Algorithm S3:
with one learner for all environments instead of processes that update shared weights. A3C has the same networks and
loss, and gradients that the actor-learners compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, LearnsFrom, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import GradientsConfig, OnPolicyConfig, StateDependentConfig
from etude.losses.policy import policy_gradient, standardise
from etude.networks import Maker, Mlp, Normaliser, Part, Spec
from etude.optimizers import Adam, Optimizer


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig, StateDependentConfig, StochasticPolicyConfig):
    """Hyperparameters of A2C, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    learning_rate: float | Linear = 7e-4
    gae_lambda: float = 1.0
    rollout_length: int = 5
    minibatch_size: int | None = None
    max_gradient_norm: float | None = 0.5
    optimizer: Optimizer = Adam(epsilon=1e-5)
    entropy_coefficient: float | Linear = 0.01  # entropy coefficient of the loss
    value_coefficient: float = 0.5  # value function coefficient of the loss
    normalize_advantage: bool = False  # standardise advantages in every rollout
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "value_coefficient")


class A2C(Agent):
    """A stochastic policy and a critic of states, with one gradient step for each rollout."""

    learns_from: LearnsFrom = "advantages"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = {
            **self.policy.make(make, self.config.actor_network, self.config.initial_log_std),
            "critic": make(self.config.critic_network, spaces.observation, outputs=1),
        }

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.model["critic"](self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, policy = self.config, self.act(batch.observation)
        advantage = batch.extras["advantage"]
        if config.normalize_advantage:
            advantage = standardise(advantage, batch.weight)
        policy_loss = ops.mean(batch.weight * policy_gradient(policy.log_prob(batch.sampled_action), advantage))
        value_loss = ops.mean(batch.weight * ops.square(self.value(batch.observation) - batch.extras["return"]))
        entropy = ops.mean(batch.weight * policy.entropy())
        return Losses(
            model=Loss(
                policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy,
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy=entropy,
            )
        )


@dataclass(frozen=True)
class A3CConfig(A2CConfig, GradientsConfig):
    """Hyperparameters of A3C: those of A2C, with a rollout of one environment for each gradient."""


class A3C(A2C):
    """A2C with asynchronous gradients: each environment's gradient is computed with weights that may be stale when
    it is applied."""

    learns_from = "gradients"
