"""How a ring keeps observations: each one once, in the slot of the row that starts from it.

The observation after a row is in the next slot, unless the row ended its episode: then it is kept beside the ring.
`Whole` and `FrameStacks` have the same methods; the ring is given one of them. Stacked frames are stored once: the
stack of row t + 1 shares all frames but one with that of row t. Each slot keeps the newest frame, and a stack is put
together from the slots before it when it is read; the older frames of an episode's first stack (repeated, black, or
whatever the environment's wrapper made them) are kept beside the ring.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import ConfigError, SpaceError
from etude.base.trees import Tree
from etude.replay.storage import FileStorage, RamStorage


class ObservationStore:
    """Rows that are stored under numbers and freed one by one. The capacity doubles when needed, up to `limit`.

    template: a tree of arrays, one row. limit: the largest capacity in rows. storage: allocates the arrays.
    """

    def __init__(self, template: Tree, limit: int, storage: RamStorage | FileStorage):
        self.limit: int = limit
        self.storage: RamStorage | FileStorage = storage
        self.used: int = 0  # numbers below this have been given out since the last `clear`
        self.free: list[int] = []
        self.rows: Tree = trees.map(lambda leaf: storage.zeros((0, *leaf.shape), leaf.dtype), template)

    def __len__(self) -> int:
        return self.used - len(self.free)

    @property
    def size(self) -> int:
        """The capacity in rows."""
        return len(trees.leaves(self.rows)[0])

    def put(self, values: Tree, count: int) -> np.ndarray:
        """Store `count` rows; returns their numbers [count]."""
        recycled = [self.free.pop() for _ in range(min(count, len(self.free)))]
        fresh = count - len(recycled)
        if self.used + fresh > self.size:
            self._grow(self.used + fresh)
        numbers = np.array(recycled + list(range(self.used, self.used + fresh)), np.int64)
        self.used += fresh
        trees.put(self.rows, numbers, values)
        return numbers

    def part(self, key: str) -> ObservationStore:
        """The part of this key of rows that are dicts, to be read until the next `put`."""
        part = copy(self)
        part.rows = self.rows[key]
        return part

    def release(self, numbers: np.ndarray) -> None:
        """Free rows."""
        self.free.extend(numbers.tolist())

    def clear(self) -> None:
        self.used = 0
        self.free = []

    def _grow(self, needed: int) -> None:
        size = min(self.limit, max(16, 2 * self.size, needed))
        row_bytes = sum(leaf.itemsize * int(np.prod(leaf.shape[1:])) for leaf in trees.leaves(self.rows))
        self.storage.require(row_bytes * size, "The final observations in the replay", "Lower the replay's capacity.")
        self.rows = trees.map(lambda leaf: self.storage.grown(leaf, size), self.rows)

    def state(self) -> dict[str, Any]:
        rows = {path: leaf[: self.used] for path, leaf in trees.items(self.rows, "rows")}
        return {"used": self.used, "free": np.array(self.free, np.int64), **rows}

    def check_state(self, saved: Stored, limits: list[tuple[Any, Any]]) -> tuple[int, np.ndarray]:
        """Raise CheckpointError where `restore` cannot continue from this. limits: of the values of each leaf.

        Returns (numbers given out, those of them that are free).
        """
        places = dict(trees.items(self.rows, "rows"))
        held = saved.fields(("used", "free", *places))
        used = held["used"].whole(0, self.limit)
        free = held["free"].array(np.int64, (None,), 0, used - 1)
        if len(np.unique(free)) != len(free):
            held["free"].refuse("each number once")
        for (place, leaf), ends in zip(places.items(), limits, strict=True):
            held[place].array(leaf.dtype, (used, *leaf.shape[1:]), *ends)
        return used, free

    def restore(self, state: dict[str, Any]) -> None:
        self.clear()
        if state["used"] > self.size:
            self._grow(state["used"])
        for path, leaf in trees.items(self.rows, "rows"):
            leaf[: state["used"]] = state[path]
        self.used, self.free = int(state["used"]), np.asarray(state["free"]).tolist()


Where = slice | np.ndarray  # flat rows of the ring, slot * environments + column


class Whole:
    """Observations as they are. template: a tree of arrays, one observation. kind: [rows] the ring's own array, 0 where
    the next slot continues the episode. storage: where the arrays live."""

    def __init__(self, template: Tree, kind: np.ndarray, environments: int, storage: RamStorage | FileStorage):
        rows = len(kind)
        self.kind: np.ndarray = kind
        self.environments: int = environments
        self.kept: Tree = trees.map(lambda leaf: storage.zeros((rows, *leaf.shape), leaf.dtype), template)
        self.finals: ObservationStore = ObservationStore(template, rows, storage)
        self.final: np.ndarray = storage.zeros((rows,), np.int32)  # numbers in `finals` of rows that ended an episode

    def rows_of(self, steps: Steps) -> Tree:
        """The observations of `steps`, [T * N, ...]. Raises SpaceError where they do not fit."""
        return rows_for(self.kept, steps.observation, "observation")

    def write(self, where: Where, observation: Tree, pending: Where, following: Tree) -> None:
        """Store the observations of steps at `where` and those that follow at `pending`."""
        trees.put(self.kept, where, observation)
        trees.put(self.kept, pending, following)

    def end(self, rows: np.ndarray, finals: Tree) -> None:
        """Keep the observations that rows [E] ended with."""
        self.final[rows] = self.finals.put(finals, len(rows))

    def cut(self, rows: np.ndarray, pending: np.ndarray) -> None:
        """Let rows [E] end with what is stored at `pending` [E]."""
        self.end(rows, trees.rows(self.kept, pending))

    def release(self, rows: np.ndarray) -> None:
        """Forget what rows [E], which ended episodes, ended with."""
        self.finals.release(self.final[rows])

    def at(self, rows: np.ndarray) -> Tree:
        """Observations [*rows.shape, ...]."""
        return take(self.kept, rows)

    def after(self, rows: np.ndarray) -> Tree:
        """The true observations that followed [*rows.shape, ...]: of the next slot, or beside where episodes ended."""
        kind, following = self.kind.take(rows), take(self.kept, (rows + self.environments) % len(self.kind))
        if np.count_nonzero(kind):
            ended = kind.nonzero()
            trees.put(following, ended, take(self.finals.rows, self.final.take(rows[ended])))
        return following

    def pair(self, rows: np.ndarray) -> tuple[Tree, Tree]:
        """`at` and `after` together."""
        return take(self.kept, rows), self.after(rows)

    def part(self, key: str) -> Whole:
        """The part of this key of Dict observations, to be read until the next `write`."""
        part = copy(self)
        part.kept, part.finals = self.kept[key], self.finals.part(key)
        return part

    def clear(self, rows: int) -> None:
        """Forget everything; the first `rows` rows are those that were written."""
        trees.map(lambda leaf: leaf[:rows].fill(0), self.kept)
        self.final[:rows] = 0
        self.finals.clear()

    def nbytes(self) -> int:
        return trees.count_bytes(self.kept) + trees.count_bytes(self.finals.rows) + self.final.nbytes

    def state(self, rows: int) -> dict[str, Any]:
        kept = {path: leaf[:rows] for path, leaf in trees.items(self.kept, "kept")}
        return {"final": self.final[:rows], "finals": self.finals.state(), **kept}

    def check_state(self, saved: Stored, rows: int, ended: np.ndarray, limits: list[tuple[Any, Any]]) -> None:
        """Raise CheckpointError where `restore` cannot continue from this, for so many rows. ended: [E] the rows that
        end episodes. limits: of the values of each leaf."""
        places = dict(trees.items(self.kept, "kept"))
        held = saved.fields(("final", "finals", *places))
        for (place, leaf), ends in zip(places.items(), limits, strict=True):
            held[place].array(leaf.dtype, (rows, *leaf.shape[1:]), *ends)
        final = held["final"].array(np.int32, (rows,))
        check_numbers(held["final"], final[ended], *self.finals.check_state(held["finals"], limits))

    def restore(self, state: dict[str, Any], rows: int) -> None:
        for path, leaf in trees.items(self.kept, "kept"):
            leaf[:rows] = state[path]
        self.final[:rows] = state["final"]
        self.finals.restore(state["finals"])


def check_numbers(saved: Stored, numbers: np.ndarray, used: int, free: np.ndarray) -> None:
    """Raise CheckpointError unless these are the numbers, each once, that an `ObservationStore` has in use."""
    taken = np.zeros(used, np.int64)
    inside = numbers[(numbers >= 0) & (numbers < used)]
    np.add.at(taken, inside, 1)
    np.add.at(taken, free, 1)
    if len(inside) < len(numbers) or (taken != 1).any():
        saved.refuse("the number of one observation beside the rows for each that needs it", "other numbers")


def take(tree: Tree, rows: np.ndarray) -> Tree:
    """`leaf[rows]` for every leaf: [*rows.shape, ...]. `take` is several times as fast as indexing for short rows."""
    if isinstance(tree, np.ndarray):
        return tree.take(rows, 0)
    return trees.map(lambda leaf: leaf.take(rows, 0), tree)


def rows_for(stored: Tree, values: Tree, name: str) -> Tree:
    """`values` [T, N, ...] as rows [T * N, ...]. Raises SpaceError where they are not of the shape of what is stored,
    [rows, ...]."""
    if not isinstance(stored, np.ndarray):
        return trees.map(lambda leaf, value: rows_for(leaf, value, name), stored, values)
    if values.shape[2:] != stored.shape[1:]:
        raise SpaceError(
            f"The {name} handed to the replay has shape {values.shape[2:]}; expected {stored.shape[1:]}, as in the "
            "spaces that the ring was built for."
        )
    return values.reshape(-1, *stored.shape[1:])


def numbers(where: Where) -> np.ndarray:
    """Flat rows as an array [rows]."""
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


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
        self.inner: Whole = Whole(newest_frames(template, stack), kind, environments, storage)
        self.starts: ObservationStore = ObservationStore(trees.rows(self._older(self._one), 0), len(kind), storage)
        # Numbers in `starts` of rows that begin an episode, or -1
        self.start: np.ndarray = storage.zeros((len(kind),), np.int32)
        self.start[:] = -1

    def rows_of(self, steps: Steps) -> Tree:
        """The observations of `steps`, [T * N, ...]. Raises SpaceError or ConfigError where they do not fit.

        The first row and what follows it must share frames, or other images would be read than were added.
        """
        found = rows_for(self._one, steps.observation, "observation")
        goes_on = np.flatnonzero(~(steps.terminated[0] | steps.truncated[0]))[:1]  # one tells: all are of one kind
        following = steps.next_observation if len(steps.reward) == 1 else trees.rows(steps.observation, 1)

        def compare(stacked: bool, now: np.ndarray, then: np.ndarray) -> None:
            if stacked and not np.array_equal(now[goes_on][:, 1:], then[goes_on][:, :-1]):
                raise ConfigError(
                    f"frame_stack = {self.stack}, but consecutive observations do not share {self.stack - 1} frames, "
                    "the newest one last. Leave frame_stack at 1 for observations that are not such stacks."
                )

        self._map(compare, trees.rows(steps.observation, 0), following)
        return found

    def write(self, where: Where, observation: Tree, pending: Where, following: Tree) -> None:
        """Store the observations of steps at `where` and those that follow at `pending`; reads `kind` at `where`."""
        rows = numbers(where)
        for touched in (self.start[rows], self.start[pending]):
            self.starts.release(touched[touched >= 0])
        self.start[rows] = self.start[pending] = -1
        self.inner.write(where, self._newest(observation), pending, self._newest(following))
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

    def after(self, rows: np.ndarray) -> Tree:
        """The true observations that followed [*rows.shape, ...]."""
        return self.pair(rows)[1]

    def pair(self, rows: np.ndarray) -> tuple[Tree, Tree]:
        """`at` and `after` together, as views of the same frames."""
        frames, newest = self._read(rows.reshape(-1), 1), self.inner.after(rows.reshape(-1))

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
        return trees.map(lambda leaf, *parts: function(_is_stack(leaf, self.stack), *parts), self.template, *others)

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


def _is_stack(leaf: np.ndarray, stack: int) -> bool:
    """Whether a leaf of one observation is a stack of vectors or images. Stacks of single numbers, as small as a
    vector, are stored whole."""
    return leaf.ndim >= 2 and leaf.shape[0] == stack


def has_stacks(template: Tree, stack: int) -> bool:
    """Whether there is a stack of vectors or images among the leaves of one observation."""
    return any(_is_stack(leaf, stack) for leaf in trees.leaves(template))


def newest_frames(template: Tree, stack: int) -> Tree:
    """What is kept in a slot for one observation: the newest frame of stacks, all of other leaves."""
    return trees.map(lambda leaf: leaf[-1] if _is_stack(leaf, stack) else leaf, template)
