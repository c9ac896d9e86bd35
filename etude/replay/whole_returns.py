"""Returns up to the end of the episode, for learning without bootstrapping from the next step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from etude.base.data import Batch
from etude.losses import returns
from etude.replay.ring import TERMINATED, Ring
from etude.replay.ring_view import RingView, Stateless
from etude.replay.views import OneStep, scaled


class WholeReturns(Stateless):
    """Transitions to the end of the episode, m steps on: the discounted sum of the m rewards, the final observation,
    and gamma**m, or 0 where the episode terminated. `NStep` without a limit, at the price of one pass over the ring.

    What was truncated, or is still open, has a return only with the value of its final observation on top:
    `reward + discount * value(next_observation)`. reward_scale multiplies rewards.
    """

    def __init__(self, gamma: float, reward_scale: float = 1.0):
        self.gamma: float = gamma
        self.reward_scale: float = reward_scale
        self._basis: tuple[object, ...] = ()
        self._sums = np.zeros(0, np.float32)  # [rows] the discounted rewards from each row on

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """Every row can be asked for."""
        return rows

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        sums = self.sums(ring)
        after = ring.episodes.after(rows)
        last = ring.ahead(rows, after)
        terminated = (ring.kind.take(last) & TERMINATED) != 0
        return Batch(
            observation=ring.observation(rows),
            action=ring.actions(rows),
            reward=scaled(sums.take(rows), self.reward_scale),
            discount=np.where(terminated, 0.0, np.power(self.gamma, after + 1.0)).astype(np.float32),
            next_observation=ring.following(last),
            weight=weight,
            index=rows,
            extras=ring.stored(rows),
        )

    def sums(self, ring: Ring) -> np.ndarray:
        """[rows] the discounted sum of the rewards from each row of the ring to the end of its episode, unscaled."""
        basis = (ring, ring.version, self.gamma)
        if basis != self._basis:
            self._sums, self._basis = self._sum(ring), basis
        return self._sums

    def _sum(self, ring: Ring) -> np.ndarray:
        sums = np.zeros(ring.rows, np.float32)
        for column in range(ring.environments):
            count = int(ring.filled[column])
            slots = (int(ring.head[column]) - count + np.arange(count)) % ring.slots
            rows = slots * ring.environments + column
            reward, discount = ring.reward.take(rows).astype(np.float64), self.gamma * (ring.kind.take(rows) == 0)
            sums[rows] = returns.discounted_returns(reward, discount, np.float64(0.0))
        return sums


class OneStepAndReturns(WholeReturns):
    """Transitions with the extra `return`: the discounted sum of the rewards to the end of the episode, with no value
    of what would have followed a truncation."""

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = OneStep(self.gamma, self.reward_scale)(ring, rows, weight)
        batch.extras["return"] = scaled(self.sums(ring).take(rows), self.reward_scale)
        return batch
