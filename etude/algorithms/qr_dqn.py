"""QR-DQN: quantiles of returns.

Dabney, Rowland, Bellemare & Munos 2018, Distributional reinforcement learning with quantile regression,
arXiv:1710.10044.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.algorithms.dqn import DQNConfig
from etude.base import checks
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.losses.distributional import quantile_error, quantile_regression
from etude.losses.masks import best_action, masked
from etude.networks import Maker, Normaliser, Part, target
from etude.networks.random_shift import RandomShift

WIDTH = 1.0  # of the Huber loss: the paper's QR-DQN-1


@dataclass(frozen=True)
class QRDQNConfig(DQNConfig):
    """Hyperparameters of QR-DQN, besides those of DQN."""

    double: bool = False
    quantiles: int = 200  # quantiles of each return

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "quantiles")


class QRDQN(Agent):
    """Quantiles of the return of every action; targets are the reward plus the discounted quantiles of the best next
    action."""

    acts_by: ClassVar[ActsBy] = "values"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.random_shift: RandomShift = make.random_shift(spaces.observation, self.config.random_shift)
        self.q: Part = make.values(self.config.network, spaces.observation, int(spaces.action.n), self.config.quantiles)
        self.q_target: Part = target(self.q, every="target_update_every")
        self.batch_noise: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "q_target", "next_q"), (self.q.noise_size,))
        self.noise: dict[str, tuple[int, ...]] = dict(self.random_shift.noise)

    def act(self, observation: Tree) -> Any:
        return self._values(self.q(self.normaliser(observation)), observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        batch = self.random_shift(batch, noise)
        quantiles = ops.take_row(self.q.perturbed(noise["q"])(self.normaliser(batch.observation)), batch.action)
        following = self.normaliser(batch.next_observation)
        next_quantiles = self.q_target.perturbed(noise["q_target"])(following)
        online = self.q.perturbed(noise["next_q"])(following) if self.config.double else next_quantiles
        best = best_action(self._values(online, batch.next_observation))
        reward, discount = ops.expand_dims(batch.reward, -1), ops.expand_dims(batch.discount, -1)
        target = reward + discount * ops.take_row(next_quantiles, best)
        n = self.config.quantiles
        fractions = ops.linspace(0.5 / n, 1 - 0.5 / n, n, quantiles)
        loss = ops.mean(batch.weight * quantile_regression(quantiles, target, fractions, WIDTH))
        error = quantile_error(quantiles, target)
        return Losses(q=Loss(loss, td_error=error, q_value=ops.mean(quantiles, -1)))

    def _values(self, quantiles: Any, observation: Tree) -> Any:
        """The expected returns [N, n] of quantiles [N, n, quantiles], with the mask where there is one."""
        values = ops.mean(quantiles, -1)
        return masked(values, observation[ACTION_MASK]) if self.masked else values
