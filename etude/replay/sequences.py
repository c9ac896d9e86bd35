"""Runs of consecutive rows for recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import RECURRENT_STATE, Batch
from etude.base.errors import ConfigError
from etude.replay.ring_view import RingView, Stateless
from etude.replay.views import discounts, scaled


class Sequences(Stateless):
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

    def __init__(self, gamma: float, length: int, burn_in: int = 0, reward_scale: float = 1.0):
        if length < 1 or not 0 <= burn_in < length:
            raise ConfigError(
                f"Sequences: length = {length}, burn_in = {burn_in}; expected at least 1 step, of which fewer than all "
                "are for burn-in."
            )
        self.gamma: float = gamma
        self.length: int = length
        self.burn_in: int = burn_in
        self.reward_scale: float = reward_scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """Every row can be asked for."""
        return rows

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
        extras = ring.stored(path, started) | {"mask": np.float32(real & counted), "first": first}
        return Batch(
            observation=trees.map(times_last, observation),
            action=times_last(ring.actions(path)),
            reward=times_last(scaled(reward, self.reward_scale)),
            discount=times_last(discounts(self.gamma).take(kind) * real),
            next_observation=trees.map(times_last, following),
            weight=weight,
            index=rows,
            extras={name: times_last(array) for name, array in extras.items()} | state,
        )
