"""The ring as views of the replay read it: itself, or relabelled with other goals (`Hindsight`); and which stored rows
belong to one episode, found without a pass over the ring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.spaces import Spaces
from etude.base.trees import Tree


class EpisodeIndex:
    """Where the episodes of a ring's rows begin and end.

    Each row has an age, the steps of its episode before it, so that rows d slots apart belong to one episode exactly
    where their ages differ by d. That holds up to the end of the episode and never again: the end is found by doubling
    and halving a distance, in about 2 log2(length of the episode) looks at all sampled rows at once. Ages follow from
    `kind` and are brought up to date when they are asked for, so that a ring that nobody asks pays nothing.

    kind [rows], head [N], filled [N]: the ring's own arrays, as they change. written: [N] how many rows of each column
    were ever written (more, where all may have changed).
    """

    def __init__(self, kind: np.ndarray, head: np.ndarray, filled: np.ndarray, written: np.ndarray):
        self.kind: np.ndarray = kind
        self.head: np.ndarray = head
        self.filled: np.ndarray = filled
        self.written: np.ndarray = written
        self.environments: int = len(head)
        self.slots: int = len(kind) // len(head)
        self._ages = np.zeros(0, np.int32)  # [rows] once they were asked for; in the oldest episode perhaps too large
        self._seen = np.zeros_like(written)

    def path(self, rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of n steps from each row on: [n, *rows.shape], and whether there is such a step, bool of that shape.
        From where the episode ends, or the stored rows do, the last row is repeated."""
        steps = np.arange(n).reshape(-1, *[1] * rows.ndim)
        path = self._ahead(rows, steps)
        real = steps < self._until_head(rows)
        real[1:] &= np.logical_and.accumulate(self.kind.take(path[:-1]) == 0)
        return np.where(real, path, self._ahead(rows, real.sum(0) - 1)), real

    def begins(self, rows: np.ndarray) -> np.ndarray:
        """Whether rows are known to begin an episode: bool. Of the oldest row of a column this may be forgotten."""
        return self.kind.take(self._ahead(rows, -1)) != 0

    def before(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows of the same episode come before each row."""
        self._follow()
        stored = self.filled.take(rows % self.environments) - self._until_head(rows)
        return np.minimum(self._ages.take(rows), stored)

    def after(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows of the same episode come after each row."""
        self._follow()
        age, most = self._ages.take(rows), self._until_head(rows) - 1

        def together(distance: np.ndarray | int) -> np.ndarray:
            far = self._ages.take(rows + distance * self.environments, mode="wrap")
            return (far == age + distance) & (distance <= most)

        reach = 1
        while together(reach).any():
            reach *= 2
        count = np.zeros_like(rows)
        while reach > 1:
            reach //= 2
            count += reach * together(count + reach)
        return count

    def _ahead(self, rows: np.ndarray, count: int | np.ndarray) -> np.ndarray:
        return (rows + count * self.environments) % len(self.kind)

    def _until_head(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows there are from each row to the newest of its column, both included."""
        return (self.head.take(rows % self.environments) - rows // self.environments) % self.slots

    def _follow(self) -> None:
        """Bring the ages of the rows that were written since the last time up to date."""
        times = min(int((self.written - self._seen).max()), self.slots - 1)
        if times == 0:
            return
        if not len(self._ages):
            self._ages = np.zeros(len(self.kind), np.int32)
        newest = (self.head + np.arange(-times, 0)[:, None]) % self.slots
        rows = newest * self.environments + np.arange(self.environments)  # [times, N]
        before = self._ahead(rows, -1)
        now = np.arange(times)[:, None]
        began = np.where(self.kind.take(before) != 0, now, -1)
        # Where nothing began since, the row before the first of these tells.
        began[0] = np.where(began[0] == 0, 0, -1 - self._ages.take(before[0]))
        self._ages[rows] = now - np.maximum.accumulate(np.where(began < 0, began[0], began))
        self._seen[:] = self.written


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


class TransitionView(Protocol):
    """A view that needs no more than a `RingView`: its batches are made of rows of episodes."""

    reward_scale: float

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """The rows that a batch starts from when these are sampled; placing them again changes nothing."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored) -> None: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Stateless:
    """A part of a replay with nothing to save."""

    def state(self) -> dict[str, Any]:
        return {}

    def check_state(self, saved: Stored) -> None:
        saved.fields(())

    def restore(self, state: dict[str, Any]) -> None: ...
