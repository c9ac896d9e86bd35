"""Views of whole episodes: batches of them, trajectories to compare, their returns, and what populations earned; and
replays that one learning phase empties, of episodes, returns, or the gradients of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stateless, Stored
from etude.base.data import SAMPLED_ACTION, Batch, Steps, WorkerGradients, power_of_two
from etude.base.errors import ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.base.trees import Tree
from etude.losses import returns
from etude.replay.ring import TERMINATED, Ring
from etude.replay.views import DiscountedView, OneStep, RingView, Sequences, TransitionView, discounts, scaled


class EpisodeReturns(DiscountedView):
    """All steps of some episodes, with the extra `return`: the discounted sum of rewards to the end of the episode,
    plus the discounted value of the final observation of a truncated episode. Sutton & Barto 2018, equation 3.9.

    Steps of an episode that has not ended have no return and are left out. There is no next observation.

    value: `value(observations [M, ...]) -> [M]`, called once for all truncated episodes (padded to a power of two).
    """

    def __init__(self, gamma: float, value: Callable[[Tree], np.ndarray]):
        super().__init__(gamma)
        self.value: Callable[[Tree], np.ndarray] = value

    def __call__(self, parts: Sequence[Steps], n: int) -> Batch:
        """One batch [1, n]: the rows, and then copies of the first one with weight 0. The weights of the others are
        such that the mean of `weight * x` over the batch is the mean of x over the rows."""
        last = self._last_values(parts)
        totals = [self._returns(part, value) for part, value in zip(parts, last, strict=True)]
        known = [_known_returns(part) for part in parts]
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
            observation=joined([part.observation for part in parts]), action=joined([part.action for part in parts]),
            reward=scaled(joined([part.reward for part in parts]), self.reward_scale),
            discount=np.full((1, n), self.gamma, np.float32), next_observation=None, weight=weight[None],
            index=order[None], extras={"return": joined(totals), **sampled},
        )  # fmt: skip

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


class _OncePerPhase(Stateless):
    """The base of a `protocols.Replay` of what is learned from as a whole, in one learning phase: between two of them
    it is empty, and there is nothing to save."""

    def update(self, batches: Any, td_error: Any, ratio: Any = None) -> None:
        """There are no priorities."""

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Nothing depends on hyperparameters."""

    def trim(self, keep: int) -> None:
        """Nothing is forgotten in part."""

    def clear(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Start empty."""
        self.clear()


class EpisodeBatch(_OncePerPhase):
    """A `protocols.Replay` that stores everything collected since it was last cleared, and samples it as one batch. Its
    size in memory grows with the length of the episodes."""

    def __init__(self, view: EpisodeReturns):
        self.view = view
        self._parts: list[Steps] = []

    def __len__(self) -> int:
        return sum(int(_known_returns(part).sum()) for part in self._parts)

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

    def adjust(self, hyper: Mapping[str, float]) -> None:
        self.view.adjust(hyper)

    def clear(self) -> None:
        self._parts = []


def _known_returns(part: Steps) -> np.ndarray:
    """Whether each step [T, N] belongs to an episode that ended."""
    return np.logical_or.accumulate((part.terminated | part.truncated)[::-1], 0)[::-1]


TRIES = 8  # at replacing rows by chance, before all stored rows are looked through


class Triplets(TransitionView):
    """Three times i < k < j of one episode; each pair of neighbours is a jump from one time to a later one.

    i is the sampled row; k and j are drawn uniformly among all pairs of later times up to the final observation of the
    episode (of an open one, up to the newest observation stored). A batch holds, for rows [K, n],

    observation: the tuple (s_i, s_k), two trees [K, n, ...]; next_observation: the tuple (s_k, s_j).
    action, reward, discount and extras: those of the steps taken at i and at k, stacked along the axis after those of
        `rows`: [K, n, 2, ...]. Rewards are of these single steps, not sums over the jumps; discounts are gamma, or 0
        where that step terminated the episode.
    index: [K, n] the rows that were asked for, so that the error of a triplet becomes the priority of what led to it.

    A row with fewer than two later times is moved back by one. Where the episode has fewer than 3 stored observations,
    another row of the ring stands in, drawn uniformly; ConfigError if there is none in a longer episode.

    rng: the view's own generator, part of its state.
    """

    def __init__(self, gamma: float, rng: np.random.Generator):
        super().__init__(gamma)
        self.rng: np.random.Generator = rng

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """The rows that stand for i: these, moved back or replaced where two later times are missing."""
        before, after = ring.episodes.before(rows), ring.episodes.after(rows)
        short = before + after == 0
        if short.any():
            rows = rows.copy()
            rows[short] = self._others(ring, int(short.sum()))
            after = ring.episodes.after(rows)
        return ring.ahead(rows, -(after == 0).astype(np.int64))

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        start = self.place(ring, rows)
        bound = ring.episodes.after(start) + 1  # two different numbers below it; all pairs are equally likely
        one, other = self.rng.integers(bound), self.rng.integers(bound - 1)
        other += other >= one
        near, far = np.minimum(one, other), np.maximum(one, other)
        steps = np.stack([start, ring.ahead(start, near + 1)])  # [2, K, n] the rows i and k
        reward, kind = ring.outcome(steps)
        seen = ring.observation(steps)
        final = ring.following(ring.ahead(start, far))

        def pairs_last(array: np.ndarray) -> np.ndarray:
            return np.moveaxis(array, 0, rows.ndim)

        return Batch(
            observation=(trees.rows(seen, 0), trees.rows(seen, 1)), action=pairs_last(ring.actions(steps)),
            reward=pairs_last(scaled(reward, self.reward_scale)), discount=pairs_last(discounts(self.gamma).take(kind)),
            next_observation=(trees.rows(seen, 1), final), weight=weight, index=rows,
            extras={name: pairs_last(array) for name, array in ring.stored(steps).items()},
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"generator": generator_state(self.rng)}

    def check_state(self, saved: Stored) -> None:
        check_generator(saved.fields(("generator",))["generator"])

    def restore(self, state: dict[str, Any]) -> None:
        restore_generator(self.rng, state["generator"])

    def _others(self, ring: RingView, count: int) -> np.ndarray:
        """Rows [count] of episodes of at least 3 observations, each with the same probability."""
        rows = ring.locate(self.rng.integers(0, len(ring), count))
        for _ in range(TRIES):
            short = ring.episodes.before(rows) + ring.episodes.after(rows) == 0
            if not short.any():
                return rows
            rows[short] = ring.locate(self.rng.integers(0, len(ring), int(short.sum())))
        stored = ring.locate(np.arange(len(ring)))
        long = stored[ring.episodes.before(stored) + ring.episodes.after(stored) > 0]
        if not len(long):
            raise ConfigError(
                f"Triplets: none of the episodes in the replay ({len(ring)} steps) has the 3 observations that a "
                "triplet i < k < j needs. Collect longer episodes before sampling, or use another view."
            )
        return self.rng.choice(long, count)


class WholeReturns(DiscountedView):
    """Transitions to the end of the episode, m steps on: the discounted sum of the m rewards, the final observation,
    and gamma**m, or 0 where the episode terminated. `NStep` without a limit, at the price of one pass over the ring.

    What was truncated, or is still open, has a return only with the value of its final observation on top:
    `reward + discount * value(next_observation)`.
    """

    def __init__(self, gamma: float):
        super().__init__(gamma)
        self._basis: tuple[object, ...] = ()
        self._sums = np.zeros(0, np.float32)  # [rows] the discounted rewards from each row on

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        sums = self.sums(ring)
        after = ring.episodes.after(rows)
        last = ring.ahead(rows, after)
        terminated = (ring.kind.take(last) & TERMINATED) != 0
        discount = np.where(terminated, 0.0, np.power(self.gamma, after + 1.0)).astype(np.float32)
        observation, following = ring.observation(rows), ring.following(last)
        return self._batch(ring, rows, weight, observation, sums.take(rows), discount, following)

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


class OneStepAndReturns(OneStep, WholeReturns):
    """Transitions with the extra `return`: the discounted sum of the rewards to the end of the episode, with no value
    of what would have followed a truncation."""

    def __call__(self, ring: Any, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = super().__call__(ring, rows, weight)
        batch.extras["return"] = scaled(self.sums(ring).take(rows), self.reward_scale)
        return batch


class ReturnSequences(Sequences, WholeReturns):
    """`Sequences` of L = `length` steps from the sampled row on, with the extras `return`, the sum of the rewards from
    each step to the end of its episode, and `time`, the number of each step in its episode, from 0, int32: [k, n, L];
    and `best_return`, the highest return of a stored episode: [k, n]."""

    def __init__(self, gamma: float, length: int = 1):
        super().__init__(gamma, length)
        self._best: Any = 0.0  # the highest return of a stored episode, unscaled

    def __call__(self, ring: Any, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = super().__call__(ring, rows, weight)
        batch.extras["best_return"] = np.full(rows.shape, scaled(self._best, self.reward_scale), np.float32)
        return batch

    def _extras(self, ring: Any, path: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
        earned, time = self.sums(ring).take(path), ring.episodes.before(path).astype(np.int32)
        own = {"return": scaled(earned, self.reward_scale), "time": time}
        return super()._extras(ring, path, names) | own

    def _sum(self, ring: Ring) -> np.ndarray:
        sums, stored = super()._sum(ring), ring.locate(np.arange(len(ring)))
        self._best = sums.take(stored[ring.episodes.begins(stored)]).max()
        return sums


class Fitness(_OncePerPhase):
    """A `protocols.Replay` that stores the return of one episode of each of N environments, undiscounted and in the
    environments' own rewards."""

    def __init__(self, environments: int):
        self._returns = np.full(environments, np.nan, np.float32)

    def __len__(self) -> int:
        """How many environments have ended an episode."""
        return int(np.isfinite(self._returns).sum())

    def add(self, steps: Steps) -> None:
        for end in steps.episodes:
            self._returns[end.environment] = end.total

    def sample(self, k: int, n: int) -> Batch:
        """The returns as rewards [1, N]; k and n are ignored."""
        shape = (1, len(self._returns))
        ones = np.ones(shape, np.float32)
        index = np.arange(shape[1])[None]
        return Batch(None, np.zeros(shape, np.float32), self._returns[None].copy(), ones, None, ones, index)

    def clear(self) -> None:
        self._returns[:] = np.nan


class GradientQueue(_OncePerPhase):
    """A `protocols.Replay` of worker gradients: first in, first out."""

    def __init__(self) -> None:
        self._waiting: list[WorkerGradients] = []

    def __len__(self) -> int:
        """The number of gradients that wait."""
        return len(self._waiting)

    def add(self, found: WorkerGradients) -> None:
        """Append gradients; a part of a rollout that only counts steps has none."""
        if found.gradients:
            self._waiting.append(found)

    def sample(self, k: int, n: int) -> WorkerGradients:
        """The oldest gradients; k and n are ignored."""
        return self._waiting[0]

    def clear(self) -> None:
        self._waiting.clear()
