"""Rollouts with advantages: row by row, and for recurrent networks in parts of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import RECURRENT_STATE, Batch, power_of_two
from etude.base.errors import ConfigError
from etude.losses import returns
from etude.replay.ring import TERMINATED, TRUNCATED, Ring
from etude.replay.views import AroundView, DiscountedView, discounts


class Advantages(DiscountedView):
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

    def __init__(self, gamma: float, gae_lambda: float, value: Callable[..., Any]):
        super().__init__(gamma)
        self.gae_lambda: float = gae_lambda
        self.value: Callable[..., Any] = value
        self._basis: tuple[object, ...] = ()
        self._estimates: dict[str, np.ndarray] = {}

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma and lambda, and what rewards are multiplied by."""
        super().adjust(hyper)
        self.gae_lambda = hyper["gae_lambda"]

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        if ring.reward.ndim > 1:
            raise ConfigError(
                f"The rewards in the replay are of shape {ring.reward.shape[1:]}, one for each of several agents; "
                "advantages are those of one reward and one value. Give the environment one reward (`reward_done`), or "
                "learn from transitions (OneStep, NStep)."
            )
        reward, discount = ring.reward.take(rows), discounts(self.gamma).take(ring.kind.take(rows))
        batch = self._batch(ring, rows, weight, ring.observation(rows), reward, discount)
        batch.extras.update(self.estimates(ring, rows))
        return batch

    def estimates(self, ring: Ring, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The estimates for these rows, by the names of the extras."""
        basis = (ring, ring.version, self.gamma, self.gae_lambda, self.reward_scale)
        if basis != self._basis:
            self._estimates, self._basis = self._estimate(ring), basis
        return {name: array.take(rows, 0) for name, array in self._estimates.items()}

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
            name: scattered(ring.rows, rows, estimate)
            for name, estimate in (("advantage", advantage), ("value", value), ("return", advantage + value))
        }

    def states(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """The recurrent states at these rows, of those that the last call estimated."""
        return ring.extras[RECURRENT_STATE].take(rows, 0)

    def _values(self, ring: Ring, rows: np.ndarray, bootstrapped: np.ndarray) -> np.ndarray:
        # Engines compile for each new number of observations: fill up to one that most rollouts share.
        room = power_of_two(max(ring.environments, len(bootstrapped)))
        bootstrapped = np.append(bootstrapped, np.repeat(rows[:1], room - len(bootstrapped)))
        if RECURRENT_STATE in ring.extras:
            state = ring.extras[RECURRENT_STATE]
            value, _ = self.value(ring.observation(rows), state.take(rows, 0))
            _, after = self.value(ring.observation(bootstrapped), state.take(bootstrapped, 0))
            following, _ = self.value(ring.following(bootstrapped), after)
            values = np.concatenate((value, following), dtype=np.float64)
        else:
            observations = trees.concatenate([ring.observation(rows), ring.following(bootstrapped)])
            values = np.asarray(self.value(observations), np.float64)
        if values.shape != (len(rows) + room,):
            raise ConfigError(
                f"`value` returned shape {values.shape} for {len(rows) + room} observations; expected "
                "one number for each."
            )
        return values


def scattered(size: int, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values of these rows in an array of all, [size, ...] float32."""
    array = np.zeros((size, *values.shape[rows.ndim :]), np.float32)
    array[rows] = values
    return array


class UnrolledAdvantages(Advantages):
    """Advantages of agents whose recurrent state is not recorded with each row. It is computed again, sequence by
    sequence: from the state in which the rows of a column began, which is kept from one rollout to the next, and is
    zeros where that is not known. Columns are rollouts of one length.

    value: `value(observations [N, L, ...], states [N, M], first [N, L]) -> (values [N, L], the states after them)`;
        see `Agent.value`.
    length: of a sequence. size: (N, M).
    """

    def __init__(self, gamma: float, gae_lambda: float, value: Callable[..., Any], length: int, size: tuple[int, int]):
        super().__init__(gamma, gae_lambda, value)
        self.length = length
        # The states before the first row that is stored and after the last one, and which numbers these rows have.
        self._before, self._after = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._since, self._until = np.zeros(size[0], np.int64), np.zeros(size[0], np.int64)
        self._ring: Ring | None = None  # what was estimated last; None: nothing yet
        self._states, self._places = np.zeros((0, size[1]), np.float32), np.zeros(0, np.int64)

    def states(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """See `Advantages.states`; rows begin sequences."""
        return self._states.take(self._places.take(rows), 0)

    def state(self) -> dict[str, Any]:
        return {"recurrent_state": self._begins()}

    def check_state(self, saved: Stored) -> None:
        saved.fields(("recurrent_state",))["recurrent_state"].array(np.float32, (None, None))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; from zeros where it is of other columns, or of another agent."""
        saved, self._ring = state["recurrent_state"], None
        self._before = np.array(saved) if saved.shape == self._before.shape else np.zeros_like(self._before)

    def _begins(self) -> np.ndarray:
        """The states before the first rows that are, or will be, stored."""
        if (ring := self._ring) is None:
            return self._before
        since = (ring.written - ring.filled)[:, None]
        follows = since == self._until[:, None] + ring.slots  # as after `clear`
        after = np.where(follows, self._after, np.float32(0.0))
        return np.where(since == self._since[:, None], self._before, after)

    def _values(self, ring: Ring, rows: np.ndarray, bootstrapped: np.ndarray) -> np.ndarray:
        n = ring.environments
        if (ring.filled != ring.filled[0]).any():
            raise ConfigError(
                f"Rollouts of {ring.filled.min()} to {ring.filled.max()} rows; expected as many of each environment."
            )
        rows = rows.reshape(-1, n)
        ended = ring.kind.take(rows) != 0
        starts = np.arange(len(rows) % self.length, len(rows), self.length)
        starts = starts if len(rows) % self.length == 0 else np.append(0, starts)  # the first may be shorter
        state, found, values = self._begins(), list[np.ndarray](), np.zeros(rows.shape)
        self._before, self._ring = state, ring
        self._since, self._until = ring.written - ring.filled, ring.written.copy()
        for start, end in itertools.pairwise([*starts, len(rows)]):
            found.append(state)
            value, state = self._unrolled(ring, rows[start:end].T, state)
            values[start:end] = value.T
            state = np.where(ended[end - 1, :, None], np.float32(0.0), state)
        self._after, self._states, self._places = state, np.concatenate(found), np.zeros(ring.rows, np.int64)
        self._places[rows[starts]] = np.arange(len(self._states)).reshape(-1, n)
        # What follows a row is valued in its sequence, in the place of the next row. Engines compile for each new
        # number of sequences: fill up to one that most rollouts share.
        room = power_of_two(max(n, len(bootstrapped)))
        last = np.append(bootstrapped, np.repeat(rows[:1, 0], room - len(bootstrapped)))
        place = np.zeros(ring.rows, np.int64)
        place[rows] = np.arange(rows.size).reshape(rows.shape)
        time, column = np.divmod(place[last], n)
        block = np.searchsorted(starts, time, side="right") - 1
        path = rows[np.minimum(starts[block][:, None] + np.arange(self.length + 1), len(rows) - 1), column[:, None]]
        after = np.arange(room), time - starts[block] + 1
        following, _ = self._unrolled(ring, path, self._states[block * n + column], after, last)
        return np.append(values, following[after])

    def _unrolled(
        self, ring: Ring, path: np.ndarray, state: np.ndarray, after: Any = None, last: np.ndarray | None = None
    ) -> Any:
        """What `value` returns for sequences of rows [B, L]. after: the places, one of each sequence, in which what
        followed the rows `last` [B] is seen."""
        observation, first = ring.observation(path), np.zeros(path.shape, np.float32)
        first[:, 1:] = ring.kind.take(path[:, :-1]) != 0
        if last is not None:
            first[after] = 0.0
            trees.put(observation, after, ring.following(last))
        return self.value(observation, state, first)


class AdvantageSequences(AroundView):
    """`length` rows in a row with what `advantages` estimates for each: every array of a batch is [k, B, L, ...], but
    for two extras, float32, about the recurrent state:

    recurrent_state: [k, B, M] at the first row; zeros where an episode begins there.
    first: [k, B, L] 1 where an episode begins after that, however the one before it ended; else 0.

    Rows [k, B] are the first ones of their parts, as `ColumnEpochs(length)` selects them; none goes beyond the newest
    row of its column.
    """

    def __init__(self, length: int, advantages: Advantages):
        self.length: int = length
        self.view: Advantages = advantages

    def state(self) -> dict[str, Any]:
        return self.view.state()

    def check_state(self, saved: Stored) -> None:
        self.view.check_state(saved)

    def restore(self, state: dict[str, Any]) -> None:
        self.view.restore(state)

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        path = ring.ahead(rows[..., None], np.arange(self.length))
        batch = self.view(ring, path, np.repeat(weight[..., None], self.length, -1))
        first = np.zeros(path.shape, np.float32)
        first[..., 1:] = ring.kind.take(path[..., :-1]) != 0
        state = self.view.states(ring, rows)
        return dataclasses.replace(batch, extras=batch.extras | {RECURRENT_STATE: state, "first": first})
