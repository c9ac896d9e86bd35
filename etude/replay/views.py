"""How rows of a ring become a batch. A view is called with (ring, rows [k, n], weight [k, n]) and returns a `Batch`.

Everywhere: `discount` is 0 where the episode terminated; where it was truncated, or goes on, the value of the true next
observation counts. `place` tells the rows that a batch really starts from, `state` and `restore` keep what a view draws
random numbers from. `gamma`, `gae_lambda` and `reward_scale` are plain attributes that may be changed at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import RECURRENT_STATE, Batch
from etude.base.errors import ConfigError
from etude.losses import returns
from etude.replay.ring import TERMINATED, TRUNCATED, Ring
from etude.replay.ring_view import RingView, Stateless


class OneStep(Stateless):
    """Transitions (s, a, r, s'). reward_scale multiplies rewards."""

    def __init__(self, gamma: float, reward_scale: float = 1.0):
        self.reward_scale: float = reward_scale
        self.gamma: float = gamma

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """Every row can be asked for."""
        return rows

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        reward, kind = ring.outcome(rows)
        observation, following = ring.pair(rows)
        return Batch(
            observation=observation,
            action=ring.actions(rows),
            reward=scaled(reward, self.reward_scale),
            discount=discounts(self.gamma).take(kind),
            next_observation=following,
            weight=weight,
            index=rows,
            extras=ring.stored(rows),
        )


class OneStepAndNextActions(OneStep):
    """Transitions with the extras `next_action`, the action that was stored at the next step of the episode, and
    `next_recorded`: 1 where there is one, 0 after the last step, where `next_action` means nothing."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        batch = super().__call__(ring, rows, weight)
        left = np.minimum(ring.episodes.after(rows), 1)
        batch.extras["next_action"] = ring.actions(ring.ahead(rows, left))
        batch.extras["next_recorded"] = left.astype(np.float32)
        return batch


class NStep(Stateless):
    """Transitions over up to n steps: the discounted sum of m rewards, the observation m steps later, and gamma**m.

    m is n, or less where the episode ends or the stored steps do (the head acts as a truncation).
    Sutton & Barto 2018, section 7.1. reward_scale multiplies rewards.
    """

    def __init__(self, gamma: float, n: int, reward_scale: float = 1.0):
        if n < 1:
            raise ConfigError(f"NStep: n = {n}; expected at least 1 step.")
        self.n: int = n
        self.reward_scale: float = reward_scale
        self.gamma: float = gamma

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """Every row can be asked for."""
        return rows

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch:
        path, taken = ring.episodes.path(rows, self.n)  # [n, *rows.shape]
        rewards, kind = ring.outcome(path)
        # The end of the episode is in `taken`; under other goals it may end earlier.
        taken[1:] &= np.logical_and.accumulate(kind[:-1] == 0)
        count = taken.sum(0)
        powers = np.power(self.gamma, np.arange(self.n + 1)).astype(np.float32)
        rewards[~taken] = 0.0
        reward = np.einsum("n,n...->...", powers[:-1], rewards)  # `@` would wake BLAS's threads
        return Batch(
            observation=ring.observation(rows),
            action=ring.actions(rows),
            reward=scaled(reward, self.reward_scale),
            discount=powers.take(count) * discounts(1.0).take((kind * taken).max(0)),
            next_observation=ring.following(ring.ahead(rows, count - 1)),
            weight=weight,
            index=rows,
            extras=ring.stored(rows),
        )


class Advantages(Stateless):
    """Rows with the extras `advantage`, `value` and `return` (advantage + value), by generalised advantage estimation
    over all of the ring. Schulman et al. 2016, arXiv:1506.02438, equation 16. There is no next observation.

    value: `value(observations [M, ...]) -> [M]`, called once for all rows and, after them, the final and pending
        observations that are bootstrapped from (filled up to a number that most rollouts share). It is called again
        only after the ring or a setting changed, so that the advantages of one learning phase stay those of the policy
        that collected it.

    Where the ring stores the recurrent state at each step (the extra `recurrent_state`), `value` gets it with the
    observations and returns (values, the states after them): each row is valued with its own state, and
    what follows the last row of an episode or of the ring, with what was remembered after that.
    """

    def __init__(self, gamma: float, gae_lambda: float, value: Callable[..., Any], reward_scale: float = 1.0):
        self.gamma: float = gamma
        self.gae_lambda: float = gae_lambda
        self.reward_scale: float = reward_scale
        self.value: Callable[..., Any] = value
        self._basis: tuple[object, ...] = ()
        self._estimates: dict[str, np.ndarray] = {}

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma and lambda."""
        self.gamma, self.gae_lambda = hyper["gamma"], hyper["gae_lambda"]

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        if ring.reward.ndim > 1:
            raise ConfigError(
                f"The rewards in the replay are of shape {ring.reward.shape[1:]}, one for each of several agents; "
                "advantages are those of one reward and one value. Give the environment one reward (`reward_done`), or "
                "learn from transitions (OneStep, NStep)."
            )
        basis = (ring, ring.version, self.gamma, self.gae_lambda, self.reward_scale)
        if basis != self._basis:
            self._estimates, self._basis = self._estimate(ring), basis
        return Batch(
            observation=ring.observation(rows),
            action=ring.action.take(rows, 0),
            reward=scaled(ring.reward.take(rows), self.reward_scale),
            discount=discounts(self.gamma).take(ring.kind.take(rows)),
            next_observation=None,
            weight=weight,
            index=rows,
            extras=ring.stored(rows) | {name: array.take(rows) for name, array in self._estimates.items()},
        )

    def _estimate(self, ring: Ring) -> dict[str, np.ndarray]:
        """Estimates for every flat row of the ring; those of rows that are not stored mean nothing."""
        # Columns end together at their heads; the shorter ones have places at the start that hold no row.
        times = np.arange(int(ring.filled.max()))[:, None] - int(ring.filled.max())
        rows = ring.ahead(ring.head * ring.environments + np.arange(ring.environments), times)
        stored = times >= -ring.filled
        kind = ring.kind.take(rows)
        bootstrapped = stored & (kind == TRUNCATED)
        bootstrapped[-1] |= stored[-1] & (kind[-1] == 0)
        values = self._values(ring, rows[stored], rows[bootstrapped])
        value = np.zeros(rows.shape)
        value[stored] = values[: stored.sum()]
        next_value = np.zeros(rows.shape)
        next_value[:-1] = value[1:]
        next_value[kind != 0] = 0.0
        next_value[bootstrapped] = values[stored.sum() :][: bootstrapped.sum()]
        discount = np.where((kind & TERMINATED) == 0, self.gamma, 0.0)
        advantage = returns.advantages(
            self.reward_scale * ring.reward.take(rows), discount, value, next_value, self.gae_lambda * (kind == 0)
        )
        return {
            name: _scatter(ring.rows, rows, estimate)
            for name, estimate in (("advantage", advantage), ("value", value), ("return", advantage + value))
        }

    def states(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """The recurrent states at these rows, of those that the last call estimated."""
        return ring.extras[RECURRENT_STATE].take(rows, 0)

    def _values(self, ring: Ring, rows: np.ndarray, bootstrapped: np.ndarray) -> np.ndarray:
        # Engines compile for each new number of observations: fill up to one that most rollouts share.
        room = 1 << (max(ring.environments, len(bootstrapped)) - 1).bit_length()
        bootstrapped = np.append(bootstrapped, np.repeat(rows[:1], room - len(bootstrapped)))
        if RECURRENT_STATE in ring.extras:
            values = np.concatenate(self._remembering(ring, rows, bootstrapped), dtype=np.float64)
        else:
            observations = trees.concatenate([ring.observation(rows), ring.following(bootstrapped)])
            values = np.asarray(self.value(observations), np.float64)
        if values.shape != (len(rows) + room,):
            raise ConfigError(
                f"`value` returned shape {values.shape} for {len(rows) + room} observations; expected "
                "one number for each."
            )
        return values

    def _remembering(self, ring: Ring, rows: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of these rows, and of what followed the last ones."""
        state = ring.extras[RECURRENT_STATE]
        value, _ = self.value(ring.observation(rows), state.take(rows, 0))
        _, after = self.value(ring.observation(last), state.take(last, 0))
        following, _ = self.value(ring.following(last), after)
        return value, following


def _scatter(size: int, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    array = np.zeros(size, np.float32)
    array[rows] = values
    return array


def scaled(reward: np.ndarray, scale: float | tuple[float, ...]) -> np.ndarray:
    """Rewards [...] times a number, or [..., agents] times one for each agent."""
    return reward if scale == 1.0 else reward * np.asarray(scale, np.float32)


def discounts(gamma: float) -> np.ndarray:
    """The discount for each value of `Ring.kind`."""
    table = np.full(4, gamma, np.float32)
    table[TERMINATED] = table[TERMINATED | TRUNCATED] = 0.0
    return table
