"""Batches of whole episodes: everything that was collected since the last learning phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import SAMPLED_ACTION, Batch, Steps
from etude.base.errors import ConfigError
from etude.base.trees import Tree
from etude.losses import returns
from etude.replay.ring_view import Stateless
from etude.replay.views import scaled


class EpisodeReturns:
    """All steps of some episodes, with the extra `return`: the discounted sum of rewards to the end of the episode,
    plus the discounted value of the final observation of a truncated episode. Sutton & Barto 2018, equation 3.9.

    Steps of an episode that has not ended have no return and are left out. There is no next observation.

    value: `value(observations [M, ...]) -> [M]`, called once for all truncated episodes (padded to a power of two).
    """

    def __init__(self, gamma: float, value: Callable[[Tree], np.ndarray], reward_scale: float = 1.0):
        self.gamma: float = gamma
        self.value: Callable[[Tree], np.ndarray] = value
        self.reward_scale: float = reward_scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def __call__(self, parts: Sequence[Steps], n: int) -> Batch:
        """One batch [1, n]: the rows, and then copies of the first one with weight 0. The weights of the others are
        such that the mean of `weight * x` over the batch is the mean of x over the rows."""
        last = self._last_values(parts)
        totals = [self._returns(part, value) for part, value in zip(parts, last, strict=True)]
        known = [known_returns(part) for part in parts]
        count = sum(int(rows.sum()) for rows in known)
        order = np.append(np.arange(count), np.zeros(n - count, np.int64))
        weight = np.where(np.arange(n) < count, np.float32(n / count), np.float32(0.0))

        def joined(arrays: Sequence[Tree]) -> Tree:
            chosen = [trees.rows(array, rows) for array, rows in zip(arrays, known, strict=True)]
            return trees.map(lambda leaf: leaf[order][None], trees.concatenate(chosen))

        sampled = {}
        if all(SAMPLED_ACTION in part.extras for part in parts):
            sampled[SAMPLED_ACTION] = joined([part.extras[SAMPLED_ACTION] for part in parts])
        return Batch(
            observation=joined([part.observation for part in parts]),
            action=joined([part.action for part in parts]),
            reward=scaled(joined([part.reward for part in parts]), self.reward_scale),
            discount=np.full((1, n), self.gamma, np.float32),
            next_observation=None,
            weight=weight[None],
            index=order[None],
            extras={"return": joined(totals), **sampled},
        )

    def _returns(self, part: Steps, last: np.ndarray) -> np.ndarray:
        terms = self.reward_scale * part.reward.astype(np.float64)
        cut = part.truncated & ~part.terminated
        terms[cut] += self.gamma * last
        goes_on = ~(part.terminated | part.truncated)
        return returns.discounted_returns(terms, self.gamma * goes_on, np.zeros(terms.shape[1])).astype(np.float32)

    def _last_values(self, parts: Sequence[Steps]) -> list[np.ndarray]:
        """For each part, the values of the last observations of its truncated episodes, sorted by (t, n)."""
        cut = [(part.truncated & ~part.terminated)[tuple(part.final_index.T)] for part in parts]
        counts = [int(which.sum()) for which in cut]
        total = sum(counts)
        if not total:
            return [np.zeros(0) for _ in parts]
        observations = [trees.rows(part.final_observation, which) for part, which in zip(parts, cut, strict=True)]
        order = np.append(np.arange(total), np.zeros(power_of_two(total) - total, np.int64))
        values = self.value(trees.rows(trees.concatenate(observations), order))[:total]
        return np.split(np.asarray(values, np.float64), np.cumsum(counts)[:-1])


class EpisodeBatch(Stateless):
    """A `protocols.Replay` that stores everything collected since it was last cleared, and samples it as one batch. Its
    size in memory grows with the length of the episodes."""

    def __init__(self, view: EpisodeReturns):
        self.view = view
        self._parts: list[Steps] = []

    def __len__(self) -> int:
        return sum(int(known_returns(part).sum()) for part in self._parts)

    def add(self, steps: Steps) -> None:
        if steps.reward.ndim > 2:
            raise ConfigError(
                f"The rewards are of shape {steps.reward.shape[2:]}, one for each of several agents; returns are those "
                "of one reward. Give the environment one reward (`reward_done`), or learn from transitions."
            )
        self._parts.append(steps)

    def sample(self, k: int, n: int) -> Batch:
        """All rows, padded to n, as one batch [1, n]; k is 1."""
        return self.view(self._parts, n)

    def update(self, batches: Batch, td_error: np.ndarray, ratio: np.ndarray | None = None) -> None:
        """There are no priorities."""

    def adjust(self, hyper: Mapping[str, float]) -> None:
        self.view.adjust(hyper)

    def trim(self, keep: int) -> None:
        """Episodes are learned from as a whole."""

    def clear(self) -> None:
        self._parts = []

    def restore(self, state: dict[str, Any]) -> None:
        """Start empty: between two learning phases nothing is stored."""
        self.clear()


def known_returns(part: Steps) -> np.ndarray:
    """Whether each step [T, N] belongs to an episode that ended."""
    ended = part.terminated | part.truncated
    return np.logical_or.accumulate(ended[::-1], 0)[::-1]


def power_of_two(count: int, least: int = 1) -> int:
    """The next power of two: batches that are filled up to it have few sizes, and little is compiled."""
    return max(least, 1 << (count - 1).bit_length())
