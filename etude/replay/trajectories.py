"""Triplets of times of one episode, for learning over whole trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay.ring_view import RingView
from etude.replay.views import discounts, scaled

TRIES = 8  # at replacing rows by chance, before all stored rows are looked through


class Triplets:
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

    def __init__(self, gamma: float, rng: np.random.Generator, reward_scale: float = 1.0):
        self.gamma: float = gamma
        self.rng: np.random.Generator = rng
        self.reward_scale: float = reward_scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

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
        near, far = self._two_below(ring.episodes.after(start) + 1)
        steps = np.stack([start, ring.ahead(start, near + 1)])  # [2, K, n] the rows i and k
        reward, kind = ring.outcome(steps)
        seen = ring.observation(steps)
        final = ring.following(ring.ahead(start, far))

        def pairs_last(array: np.ndarray) -> np.ndarray:
            return np.moveaxis(array, 0, rows.ndim)

        return Batch(
            observation=(trees.rows(seen, 0), trees.rows(seen, 1)),
            action=pairs_last(ring.actions(steps)),
            reward=pairs_last(scaled(reward, self.reward_scale)),
            discount=pairs_last(discounts(self.gamma).take(kind)),
            next_observation=(trees.rows(seen, 1), final),
            weight=weight,
            index=rows,
            extras={name: pairs_last(array) for name, array in ring.stored(steps).items()},
        )

    def state(self) -> dict[str, Any]:
        return {"generator": generator_state(self.rng)}

    def check_state(self, saved: Stored) -> None:
        check_generator(saved.fields(("generator",))["generator"])

    def restore(self, state: dict[str, Any]) -> None:
        restore_generator(self.rng, state["generator"])

    def _two_below(self, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two different numbers below each bound, the smaller one first; all pairs have the same probability."""
        one, other = self.rng.integers(bound), self.rng.integers(bound - 1)
        other += other >= one
        return np.minimum(one, other), np.maximum(one, other)

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
