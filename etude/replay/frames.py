"""Stacked frames stored once: the stack of row t + 1 shares all frames but one with that of row t.

Each slot keeps the newest frame; a stack is put together from the slots before it when it is read. The older frames of
an episode's first stack (repeated, black, or whatever the environment's wrapper made them) are kept beside the ring.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import ConfigError
from etude.base.trees import Tree
from etude.replay.observations import ObservationStore, Where, Whole, check_numbers, flat, numbers, require_shape
from etude.replay.storage import FileStorage, RamStorage


class FrameStacks:
    """Observations whose leaves [stack, n, ...] are stacks of vectors or images, the newest frame last, as
    `gymnasium.wrappers.FrameStackObservation` has them; others as in `Whole`.

    kind: [rows] the ring's own array, 0 where the next slot continues the episode. stack: frames in a stack.
    storage: where the arrays live.
    """

    def __init__(
        self, template: Tree, kind: np.ndarray, environments: int, stack: int, storage: RamStorage | FileStorage
    ):
        self.template: Tree = template
        self.kind: np.ndarray = kind
        self.environments: int = environments
        self.stack: int = stack
        if not has_stacks(template, stack):
            raise ConfigError(
                f"frame_stack = {stack}, but no observation is a stack of {stack} frames, of shape ({stack}, n, ...); "
                f"got {[leaf.shape for leaf in trees.leaves(template)]}. Leave frame_stack at 1, or stack the frames "
                "along the first axis."
            )
        self._one = trees.map(lambda leaf: leaf[None], template)
        self.inner: Whole = Whole(newest_frames(template, stack), len(kind), storage)
        self.starts: ObservationStore = ObservationStore(trees.rows(self._older(self._one), 0), len(kind), storage)
        self.start: np.ndarray = storage.zeros(
            (len(kind),), np.int32
        )  # numbers in `starts` of rows that begin an episode, or -1
        self.start[:] = -1

    def verify(self, steps: Steps) -> None:
        """Raise SpaceError or ConfigError where observations do not fit.

        The first row and what follows it must share frames, or other images would be read than were added.
        """
        require_shape(self._one, steps.observation, "observation")
        goes_on = np.flatnonzero(~(steps.terminated[0] | steps.truncated[0]))[:1]  # one tells: all are of one kind
        following = steps.next_observation if len(steps.reward) == 1 else trees.rows(steps.observation, 1)

        def compare(stacked: bool, now: np.ndarray, then: np.ndarray) -> None:
            if stacked and not np.array_equal(now[goes_on][:, 1:], then[goes_on][:, :-1]):
                raise ConfigError(
                    f"frame_stack = {self.stack}, but consecutive observations do not share {self.stack - 1} frames, "
                    "the newest one last. Leave frame_stack at 1 for observations that are not such stacks."
                )

        self._map(compare, trees.rows(steps.observation, 0), following)

    def write(self, where: Where, pending: Where, steps: Steps) -> None:
        """Store the observations of `steps` at `where` and those that follow at `pending`; reads `kind` at `where`."""
        rows = numbers(where)
        for touched in (self.start[rows], self.start[pending]):
            self.starts.release(touched[touched >= 0])
        self.start[rows] = self.start[pending] = -1
        observation = flat(self._one, steps.observation)
        self.inner.put(where, self._newest(observation))
        self.inner.put(pending, self._newest(steps.next_observation))
        begins = np.flatnonzero(self.kind[self._before(rows, 1)])
        self.start[rows[begins]] = self.starts.put(self._older(trees.rows(observation, begins)), len(begins))

    def end(self, rows: np.ndarray, finals: Tree) -> None:
        """Keep the observations that rows [E] ended with."""
        self.inner.end(rows, self._newest(finals))

    def cut(self, rows: np.ndarray, pending: np.ndarray) -> None:
        """Let rows [E] end with what is stored at `pending` [E]."""
        self.inner.cut(rows, pending)

    def release(self, rows: np.ndarray) -> None:
        """Forget what rows [E], which ended episodes, ended with."""
        self.inner.release(rows)

    def at(self, rows: np.ndarray) -> Tree:
        """Observations [*rows.shape, ...]."""
        return self._shaped(rows, self._read(rows.reshape(-1), 0))

    def after(self, rows: np.ndarray, successors: np.ndarray, kind: np.ndarray) -> Tree:
        """The observations that followed [*rows.shape, ...]."""
        return self.pair(rows, successors, kind)[1]

    def pair(self, rows: np.ndarray, successors: np.ndarray, kind: np.ndarray) -> tuple[Tree, Tree]:
        """`at` and `after` together, as views of the same frames."""
        frames = self._read(rows.reshape(-1), 1)
        newest = self.inner.after(rows.reshape(-1), successors.reshape(-1), kind.reshape(-1))

        def complete(stacked: bool, read: np.ndarray, new: np.ndarray) -> np.ndarray:
            if not stacked:
                return new
            read[:, -1] = new
            return read[:, 1:]

        following = self._map(complete, frames, newest)
        observation = self._map(lambda stacked, read: read[:, :-1] if stacked else read, frames)
        return self._shaped(rows, observation), self._shaped(rows, following)

    def part(self, key: str) -> FrameStacks:
        """The part of this key of Dict observations, to be read until the next `write`."""
        part = copy(self)
        part.template, part.inner, part.starts = self.template[key], self.inner.part(key), self.starts.part(key)
        return part

    def clear(self, rows: int) -> None:
        """Forget everything; the first `rows` rows are those that were written."""
        self.inner.clear(rows)
        self.starts.clear()
        self.start[:] = -1

    def nbytes(self) -> int:
        return self.inner.nbytes() + trees.count_bytes(self.starts.rows) + self.start.nbytes

    def check(self, ended: np.ndarray) -> list[str]:
        """What is wrong, in words; `ended` [E] are all rows that ended an episode."""
        faults = self.inner.check(ended)
        numbers = self.start[self.start >= 0]
        if len(np.unique(numbers)) != len(numbers) or len(numbers) != len(self.starts):
            faults.append(f"{len(numbers)} rows begin episodes, but {len(self.starts)} first stacks are kept")
        return faults

    def state(self, rows: int) -> dict[str, Any]:
        return {"inner": self.inner.state(rows), "start": self.start[:rows], "starts": self.starts.state()}

    def check_state(self, saved: Stored, rows: int, ended: np.ndarray, limits: list[tuple[Any, Any]]) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; see `Whole`."""
        held = saved.fields(("inner", "start", "starts"))
        self.inner.check_state(held["inner"], rows, ended, limits)
        start = held["start"].array(np.int32, (rows,), -1)
        check_numbers(held["start"], start[start >= 0], *self.starts.check_state(held["starts"], limits))

    def restore(self, state: dict[str, Any], rows: int) -> None:
        self.inner.restore(state["inner"], rows)
        self.start[:rows] = state["start"]
        self.starts.restore(state["starts"])

    def _map(self, function: Any, *others: Tree) -> Tree:
        """`function(stacked, *leaves)` for corresponding leaves."""
        return trees.map(lambda leaf, *parts: function(is_stack(leaf, self.stack), *parts), self.template, *others)

    def _newest(self, observation: Tree) -> Tree:
        return self._map(lambda stacked, leaf: leaf[:, -1] if stacked else leaf, observation)

    def _older(self, observation: Tree) -> Tree:
        """The older frames of observations [E, ...]: [E, stack - 1, ...]; [E, 0] of other leaves."""

        def older(stacked: bool, leaf: np.ndarray) -> np.ndarray:
            return leaf[:, :-1] if stacked else np.zeros((len(leaf), 0), leaf.dtype)

        return self._map(older, observation)

    @staticmethod
    def _shaped(rows: np.ndarray, observation: Tree) -> Tree:
        """Observations [M, ...] of rows of M entries: [*rows.shape, ...]."""
        return trees.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), observation)

    def _read(self, rows: np.ndarray, room: int) -> Tree:
        """Stacks of rows [M], oldest frame first, and `room` places for newer frames: [M, stack + room, ...]. Other
        leaves: [M, ...]."""
        age = self._age(rows)[:, None]
        number = self.start[self._before(rows[:, None], age)]
        back = np.arange(self.stack - 1, -1 - room, -1)
        places = self._before(rows[:, None], back)
        young, place = (age < back).nonzero()

        def read(stacked: bool, kept: np.ndarray, older: np.ndarray) -> np.ndarray:
            if not stacked:
                return kept.take(rows, 0)
            frames = kept.take(places, 0)
            frames[young, place] = older[number[young, 0], place + age[young, 0]]
            return frames

        return self._map(read, self.inner.kept, self.starts.rows)

    def _before(self, rows: np.ndarray, count: int | np.ndarray) -> np.ndarray:
        """The rows `count` slots earlier in the same columns."""
        return (rows - count * self.environments) % len(self.kind)

    def _age(self, rows: np.ndarray) -> np.ndarray:
        """How many rows of the same episode come before each row; those that a stack does not reach are not counted."""
        age = np.zeros(rows.shape, np.int64)
        together = np.ones(rows.shape, bool)
        for back in range(1, self.stack):
            together &= self.kind.take(self._before(rows, back)) == 0
            age += together
        return age


def is_stack(leaf: np.ndarray, stack: int) -> bool:
    """Whether a leaf of one observation is a stack of vectors or images. Stacks of single numbers, as small as a
    vector, are stored whole."""
    return leaf.ndim >= 2 and leaf.shape[0] == stack


def has_stacks(template: Tree, stack: int) -> bool:
    """Whether there is a stack of vectors or images among the leaves of one observation."""
    return any(is_stack(leaf, stack) for leaf in trees.leaves(template))


def newest_frames(template: Tree, stack: int) -> Tree:
    """What is kept in a slot for one observation: the newest frame of stacks, all of other leaves."""
    return trees.map(lambda leaf: leaf[-1] if is_stack(leaf, stack) else leaf, template)
