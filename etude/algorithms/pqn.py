"""Parallelised Q-network: Q-learning on the rollouts of many environments, without replay and target network.

Gallici et al. 2024, Simplifying deep temporal difference learning, arXiv:2407.04811, Algorithm 1. The targets are the
lambda returns of Peng & Williams 1994, doi:10.1016/B978-1-55860-335-6.50035-0, which no exploring action cuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import ActsBy, Agent, LearnsFrom, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig
from etude.losses.masks import best_value, masked
from etude.losses.value import squared
from etude.networks import Maker, Mlp, Normaliser, Part, Spec


@dataclass(frozen=True)
class PQNConfig(OnPolicyConfig):
    """Hyperparameters of PQN, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), layer_norm=True)  # layer normalisation stands in for a target network
    learning_rate: float | Linear = Linear(5e-4, 0.0)
    rollout_length: int = 32
    minibatch_size: int | None = 128
    epochs: int = 2
    gae_lambda: float = 0.65  # lambda of Q(lambda); 0: one-step, 1: all rewards to the end of the rollout
    max_gradient_norm: float | None = 10.0
    epsilon: float | Linear = Linear(1.0, 0.05, 0.1)  # probability of a random action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon")


class PQN(Agent):
    """Values of every action; the target is a lambda return that takes the best action's value at every step, by the
    network as it was before the learning phase."""

    acts_by: ClassVar[ActsBy] = "values"
    learns_from: LearnsFrom = "lambda_returns"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.q: Part = make.values(self.config.network, spaces.observation, int(spaces.action.n))

    def act(self, observation: Tree) -> Any:
        values = self.q(self.normaliser(observation))
        return masked(values, observation[ACTION_MASK]) if self.masked else values

    def value(self, observation: Tree) -> Any:
        return best_value(self.act(observation))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        q = ops.take_last(self.q(self.normaliser(batch.observation)), batch.action)
        td_error = batch.extras["return"] - q
        return Losses(q=Loss(ops.mean(batch.weight * squared(td_error)), td_error=td_error, q_value=q))
