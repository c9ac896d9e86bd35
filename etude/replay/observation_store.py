"""A store beside the ring for observations outside its rows: final ones, and the older frames of first stacks."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
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
