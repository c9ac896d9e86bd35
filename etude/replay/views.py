"""How rows of a ring become a batch. A view is called with (ring, rows [k, n], weight [k, n]) and returns a `Batch`.

Everywhere: `discount` is 0 where the episode terminated; where it was truncated, or goes on, the value of the true next
observation counts. `place` tells the rows that a batch really starts from, `state` and `restore` keep what a view draws
random numbers from. `gamma`, `gae_lambda` and `reward_scale` are plain attributes that may be changed at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.checks import Stateless, whole_number
from etude.base.data import RECURRENT_STATE, Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.replay.ring import TERMINATED, TRUNCATED, EpisodeIndex, Ring


class RingView(Protocol):
    """The methods of `Ring` that views of transitions use. The last axes of `rows` are those of the rows that the view
    was called with; axes of its own (the steps of a path) come before them."""

    spaces: Spaces
    episodes: EpisodeIndex

    def __len__(self) -> int: ...

    def locate(self, positions: np.ndarray) -> np.ndarray: ...

    def ahead(self, rows: np.ndarray, count: int | np.ndarray = 1) -> np.ndarray: ...

    def observation(self, rows: np.ndarray) -> Tree: ...

    def following(self, rows: np.ndarray) -> Tree: ...

    def pair(self, rows: np.ndarray) -> tuple[Tree, Tree]: ...

    def following_part(self, key: str, rows: np.ndarray) -> Tree: ...

    def actions(self, rows: np.ndarray) -> np.ndarray: ...

    def outcome(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def stored(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]: ...


class DiscountedView(Stateless):
    """The base of views with a discount factor."""

    def __init__(self, gamma: float):
        self.gamma: float = gamma
        self.reward_scale: Any = 1.0  # multiplies rewards; of several agents, one for each

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma, and what rewards are multiplied by."""
        self.gamma, self.reward_scale = hyper["gamma"], hyper.get("reward_scale", 1.0)

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """The rows that a batch starts from when these are sampled; placing them again changes nothing."""
        return rows

    def _batch(
        self,
        ring: RingView,
        rows: np.ndarray,
        weight: np.ndarray,
        observation: Tree,
        reward: np.ndarray,
        discount: np.ndarray,
        following: Tree = None,
    ) -> Batch:
        """Rows with what is stored of them: their actions and extras, and these rewards, which are scaled here."""
        return Batch(
            observation=observation, action=ring.actions(rows), reward=scaled(reward, self.reward_scale),
            discount=discount, next_observation=following, weight=weight, index=rows, extras=ring.stored(rows),
        )  # fmt: skip


class TransitionView(DiscountedView):
    """The base of views that need no more than a `RingView`: their batches are made of rows of episodes."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        raise NotImplementedError


class AroundView:
    """The base of views around another one, `view`, whose hyperparameters they have."""

    view: Any

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present hyperparameters."""
        self.view.adjust(hyper)


class OneStep(TransitionView):
    """Transitions (s, a, r, s')."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        reward, kind = ring.outcome(rows)
        observation, following = ring.pair(rows)
        return self._batch(ring, rows, weight, observation, reward, discounts(self.gamma).take(kind), following)


class OneStepAndNextActions(OneStep):
    """Transitions with the extras `next_action`, the action that was stored at the next step of the episode, and
    `next_recorded`: 1 where there is one, 0 after the last step, where `next_action` means nothing."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = super().__call__(ring, rows, weight)
        left = np.minimum(ring.episodes.after(rows), 1)
        batch.extras["next_action"] = ring.actions(ring.ahead(rows, left))
        batch.extras["next_recorded"] = left.astype(np.float32)
        return batch


class NStep(TransitionView):
    """Transitions over up to n steps: the discounted sum of m rewards, the observation m steps later, and gamma**m.

    m is n, or less where the episode ends or the stored steps do (the head acts as a truncation).
    Sutton & Barto 2018, section 7.1.
    """

    def __init__(self, gamma: float, n: int):
        whole_number("NStep: n", n)
        super().__init__(gamma)
        self.n: int = n

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        path, taken = ring.episodes.path(rows, self.n)  # [n, *rows.shape]
        rewards, kind = ring.outcome(path)
        # The end of the episode is in `taken`; under other goals it may end earlier.
        taken[1:] &= np.logical_and.accumulate(kind[:-1] == 0)
        count = taken.sum(0)
        powers = np.power(self.gamma, np.arange(self.n + 1)).astype(np.float32)
        rewards[~taken] = 0.0
        reward = np.einsum("n,n...->...", powers[:-1], rewards)  # `@` would wake BLAS's threads
        discount = powers.take(count) * GOES_ON.take((kind * taken).max(0))
        following = ring.following(ring.ahead(rows, count - 1))
        return self._batch(ring, rows, weight, ring.observation(rows), reward, discount, following)


def scaled(reward: np.ndarray, scale: float | tuple[float, ...]) -> np.ndarray:
    """Rewards [...] times a number, or [..., agents] times one for each agent."""
    return reward if scale == 1.0 else reward * np.asarray(scale, np.float32)


def discounts(gamma: float) -> np.ndarray:
    """The discount for each value of `Ring.kind`."""
    table = np.full(4, gamma, np.float32)
    table[TERMINATED] = table[TERMINATED | TRUNCATED] = 0.0
    return table


GOES_ON: np.ndarray = discounts(1.0)


class Sequences(TransitionView):
    """Runs of L = `length` consecutive rows of one episode, every array [k, n, L, ...] but `weight` and `index` [k, n].
    Kapturowski et al. 2019 (R2D2), section 3.

    A run stops where its episode ends, or the stored rows do, and is filled up to L: there the last row's observation
    and action are repeated, and reward, discount and `mask` are 0. Two extras say what to do with each step, float32:

    mask: 1 where the loss counts the step: a real one, from the sampled row on. The mean loss of a batch is
        `sum(mask * loss) / sum(mask)`.
    first: 1 where the episode begins, so that the recurrent state is the initial one. Only a run's first step can be.
        It is 0 where that is forgotten: at the oldest row of a column whose earlier rows were overwritten.

    Where the ring stores the state at each step (the extra `recurrent_state`), there is that of the first step:
    [k, n, M].

    burn_in: up to so many of the L steps come before the sampled row, to warm the recurrent state up; `mask` is 0
        there. They are as many as the episode (as far as it is stored) has before the row: runs that start with their
        episode need no warm-up, and the steps that this saves come later and count. So every row that is sampled is
        learned from, also the first ones of an episode, which a fixed split of the run never counts.

    A recurrent DQN unrolls its network over `observation` from `recurrent_state`, or from the initial one (all L steps:
    what is filled up comes last and changes nothing that counts), and takes one step from each state that this gives on
    `next_observation` for the values to bootstrap from: also where the run stops, those are of the true next
    observation.
    """

    def __init__(self, gamma: float, length: int, burn_in: int = 0):
        if length < 1 or not 0 <= burn_in < length:
            raise ConfigError(
                f"Sequences: length = {length}, burn_in = {burn_in}; expected at least 1 step, of which fewer than all "
                "are for burn-in."
            )
        super().__init__(gamma)
        self.length: int = length
        self.burn_in: int = burn_in

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        before = np.minimum(ring.episodes.before(rows), self.burn_in) if self.burn_in else np.zeros_like(rows)
        path, real = ring.episodes.path(ring.ahead(rows, -before), self.length)
        reward, kind = ring.outcome(path)
        counted = np.arange(self.length).reshape(-1, *[1] * rows.ndim) >= before
        # The end of the episode is in `real`; under other goals it may end earlier, but not before it is learned from.
        real[1:] &= np.logical_and.accumulate((kind[:-1] == 0) | ~counted[:-1])
        first = np.zeros(path.shape, np.float32)
        first[0] = ring.episodes.begins(path[0])
        observation, following = ring.pair(path)
        reward[~real] = 0.0

        def times_last(array: Any) -> np.ndarray:
            return np.moveaxis(array, 0, rows.ndim)

        started = ring.stored(path[0])
        state = {name: started.pop(name) for name in (RECURRENT_STATE,) if name in started}
        extras = self._extras(ring, path, started) | {"mask": np.float32(real & counted), "first": first}
        return Batch(
            observation=trees.map(times_last, observation), action=times_last(ring.actions(path)),
            reward=times_last(scaled(reward, self.reward_scale)),
            discount=times_last(discounts(self.gamma).take(kind) * real),
            next_observation=trees.map(times_last, following), weight=weight, index=rows,
            extras={name: times_last(array) for name, array in extras.items()} | state,
        )  # fmt: skip

    def _extras(self, ring: RingView, path: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Of the steps of a path [L, *rows.shape]."""
        return ring.stored(path, names)


class Unrolls(DiscountedView):
    """Whole columns of the ring: every array of a batch is [k, B, T, ...], T the rows of a column, all of which hold as
    many. Rows [k, B] are the oldest of their columns, as `ColumnEpochs` selects them.

    Episodes may end anywhere in a column: there `goes_on` is 0, and else 1. The next observation of a row that ends an
    episode is the true last one of that.
    """

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        length = int(ring.filled.max())
        if ring.reward.ndim > 1 or length != ring.filled.min():
            raise ConfigError(
                f"Unrolls of columns that hold {ring.filled.min()} to {length} rows, with rewards of shape "
                f"{ring.reward.shape[1:]}; expected as many rows in each, and one reward for a step."
            )
        path = ring.ahead(rows[..., None], np.arange(length))
        observation, following = ring.pair(path)
        (reward, kind), weight = ring.outcome(path), np.repeat(weight[..., None], length, -1)
        batch = self._batch(ring, path, weight, observation, reward, discounts(self.gamma).take(kind), following)
        batch.extras["goes_on"] = (kind == 0).astype(np.float32)
        return batch
