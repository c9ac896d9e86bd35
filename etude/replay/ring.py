"""The ring: the newest transitions of N environments, each observation stored once.

Slots are rows of all columns (environments): the flat row `slot * environments + column` holds an observation, the
action chosen for it, the reward, and how the step ended. The next slot of the column holds what followed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import spaces as spaces_
from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import CheckpointError, ConfigError, EtudeError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.replay.observations import FrameStacks, Where, Whole, newest_frames, numbers, rows_for
from etude.replay.storage import FileStorage, RamStorage


def between(steps: Steps, start: int, end: int) -> Steps:
    """The time steps from `start` up to `end`; `next_observation` is what follows them."""
    times = steps.shape[0]
    finals = (steps.final_index[:, 0] >= start) & (steps.final_index[:, 0] < end)
    return replace(
        steps, observation=trees.rows(steps.observation, slice(start, end)), action=steps.action[start:end],
        reward=steps.reward[start:end], terminated=steps.terminated[start:end], truncated=steps.truncated[start:end],
        next_observation=steps.next_observation if end == times else trees.rows(steps.observation, end),
        final_observation=trees.rows(steps.final_observation, finals),
        final_index=steps.final_index[finals] - np.array([start, 0]),
        restarted=steps.restarted if start == 0 else np.zeros_like(steps.restarted),
        extras={name: array[start:end] for name, array in steps.extras.items()},
    )  # fmt: skip


Extras = dict[str, tuple[tuple[int, ...], Any]]  # name -> (shape of one row, dtype)


TERMINATED, TRUNCATED = 1, 2  # bits of `kind`; 0 where the episode goes on in the next slot
EDGE = 4  # nothing is stored here, and what follows begins a column


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
        path = self.ahead(rows, steps)
        real = steps < self.until_head(rows)
        real[1:] &= np.logical_and.accumulate(self.kind.take(path[:-1]) == 0)
        return np.where(real, path, self.ahead(rows, real.sum(0) - 1)), real

    def begins(self, rows: np.ndarray) -> np.ndarray:
        """Whether rows are known to begin an episode: bool. Of the oldest row of a column this may be forgotten."""
        return self.kind.take(self.ahead(rows, -1)) != 0

    def before(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows of the same episode come before each row."""
        self._follow()
        stored = self.filled.take(rows % self.environments) - self.until_head(rows)
        return np.minimum(self._ages.take(rows), stored)

    def after(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows of the same episode come after each row."""
        self._follow()
        age, most = self._ages.take(rows), self.until_head(rows) - 1

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

    def ahead(self, rows: np.ndarray, count: int | np.ndarray = 1) -> np.ndarray:
        """The flat rows `count` slots later in the same columns."""
        return (rows + count * self.environments) % len(self.kind)

    def until_head(self, rows: np.ndarray) -> np.ndarray:
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
        before = self.ahead(rows, -1)
        now = np.arange(times)[:, None]
        began = np.where(self.kind.take(before) != 0, now, -1)
        # Where nothing began since, the row before the first of these tells.
        began[0] = np.where(began[0] == 0, 0, -1 - self._ages.take(before[0]))
        self._ages[rows] = now - np.maximum.accumulate(np.where(began < 0, began[0], began))
        self._seen[:] = self.written


class Ring:
    """The newest `capacity` environment steps of `environments` columns, `capacity // environments` of each.

    capacity: environment steps, counted over all columns. extras: what is stored with every row (log_prob, ...).
    frame_stack: stacks of this many frames along the first axis are stored frame by frame (see `frames`).
    reward_shape: of the reward of one step; (agents,) where each of several agents has its own.
    folder: keep the arrays in files there, mapped into memory, for replays that are larger than it (see `storage`).
        The folder is made where it is missing, belongs to this ring alone, and is emptied by `close`.

    Every stored row can be sampled: what followed is in the next slot (for the newest row of a column, at its head) or,
    where an episode ended, beside the ring. Raises ConfigError where memory, or the disk, does not suffice.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        environments: int = 1,
        extras: Extras | None = None,
        frame_stack: int = 1,
        reward_shape: tuple[int, ...] = (),
        folder: Path | str | None = None,
    ):
        if capacity < environments or environments < 1 or frame_stack < 1:
            raise ConfigError(
                f"A ring of capacity {capacity}, environments {environments} and frame_stack {frame_stack} cannot be; "
                "expected at least one step of each of at least one environment."
            )
        self.limit: int = capacity // environments  # rows of a column
        self.slots: int = self.limit + frame_stack  # the head, and the older frames of the oldest stack, come on top
        self.rows: int = self.slots * environments
        template, action = spaces_.zeros(spaces.observation), spaces_.zeros(spaces.action)
        observation = trees.count_bytes(template if frame_stack == 1 else newest_frames(template, frame_stack))
        extra = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in (extras or {}).values())
        reward, kind, final, start = 4 * math.prod(reward_shape), 1, 4, 4 * (frame_stack > 1)
        row = observation + trees.count_bytes(action) + extra + reward + kind + final + start
        self.bytes_needed: int = self.rows * row  # and an observation for each episode in it
        self.storage: RamStorage | FileStorage = RamStorage() if folder is None else FileStorage(folder)
        self.storage.require(
            self.bytes_needed,
            f"A replay of {capacity:,} steps",
            "Lower its capacity (`buffer_size` in the configs), or keep it in files (`replay_folder` of a run).",
        )
        zeros = self.storage.zeros
        self.spaces: Spaces = spaces
        self.capacity: int = capacity
        self.environments: int = environments
        self.frame_stack: int = frame_stack
        self.kind: np.ndarray = zeros((self.rows,), np.uint8)  # [rows] how each step ended
        self.kind[-environments:] = EDGE
        self.observations: Whole | FrameStacks = (
            Whole(template, self.kind, environments, self.storage)
            if frame_stack == 1
            else FrameStacks(template, self.kind, environments, frame_stack, self.storage)
        )
        self.action: np.ndarray = zeros((self.rows, *action.shape), action.dtype)
        self.reward: np.ndarray = zeros((self.rows, *reward_shape), np.float32)
        self.extras: Any = {name: zeros((self.rows, *shape), dtype) for name, (shape, dtype) in (extras or {}).items()}
        self.head: np.ndarray = np.zeros(environments, np.int64)  # [N] the slot of the next row of each column
        self.filled: np.ndarray = np.zeros(environments, np.int64)  # [N] rows of each column
        self.written: np.ndarray = np.zeros(environments, np.int64)  # [N] rows ever written, or more where all changed
        self.episodes: EpisodeIndex = EpisodeIndex(self.kind, self.head, self.filled, self.written)
        self.ahead: Callable[..., np.ndarray] = self.episodes.ahead
        self.observation: Callable[[np.ndarray], Tree] = self.observations.at  # what actions of rows were chosen for
        self.following: Callable[[np.ndarray], Tree] = self.observations.after  # the true ones that came next
        self.pair: Callable[[np.ndarray], tuple[Tree, Tree]] = self.observations.pair  # both
        self.version: int = 0  # changes whenever the contents do
        self._columns, self._length, self._even = list(range(environments)), 0, True

    def __len__(self) -> int:
        return self._length

    @property
    def full(self) -> bool:
        return self._length == self.limit * self.environments

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, the observations that are kept beside the ring included."""
        arrays = (self.kind, self.action, self.reward, *self.extras.values())
        return self.observations.nbytes() + sum(array.nbytes for array in arrays)

    def clear(self) -> None:
        """Forget every row. The next row of each column is taken as the first of an episode."""
        # Zeros, so that a ring that was restored and one that ran on hold the same bytes.
        rows = self._used() * self.environments
        for array in (self.kind, self.action, self.reward, *self.extras.values()):
            array[:rows] = 0
        self.observations.clear(rows)
        self.kind[-self.environments :] = EDGE
        self.head[:] = self.filled[:] = 0
        self.written += self.slots
        self._settle()

    def trim(self, keep: int | np.ndarray) -> np.ndarray:
        """Forget all but the newest rows, with what their episodes ended with. Returns the flat rows forgotten.

        keep: rows counted over all columns, of which each keeps an equal part, rounded up; or a number for each column
            [N]. Columns that hold fewer keep them. An episode that is cut through keeps its later part.
        """
        wanted = np.asarray(keep if np.ndim(keep) else -(-keep // self.environments))
        if wanted.shape not in ((), (self.environments,)) or np.min(keep) < 0:
            raise ConfigError(
                f"Ring.trim: keep = {keep}; expected a number of rows, or one for each of {self.environments} columns, "
                "of at least 0."
            )
        counts = self.filled - np.minimum(self.filled, wanted)
        if not counts.any():
            return np.zeros(0, np.int64)
        gone = self.oldest(counts)
        # As where rows are overwritten, the first rows that stay may still need the frames and ends before them.
        unneeded = self.ahead(gone, 1 - self.frame_stack)
        self._release(unneeded[self.kind[unneeded] & (TERMINATED | TRUNCATED) != 0])
        self.filled -= counts
        self._settle()
        return gone

    def close(self) -> None:
        """Remove the files of a ring in a folder; nothing may be read or added afterwards. May be called twice."""
        self.storage.close()

    def add(self, steps: Steps) -> Where:
        """Append rows to the columns that `steps` names, over the oldest ones. Returns the flat rows written: all that
        are still stored, where `steps` hold more than the ring does."""
        (times, count), columns = steps.terminated.shape, steps.columns.tolist()
        if times > self.limit:  # the older ones are overwritten at once, but episodes stay whole
            parts = range((times - 1) % self.limit + 1, times + 1, self.limit)
            return [self.add(between(steps, max(0, end - self.limit), end)) for end in parts][-1]
        observation = self.observations.rows_of(steps)  # what does not fit is refused before anything is changed
        action = rows_for(self.action, steps.action, "action")
        reward = rows_for(self.reward, steps.reward, "reward")
        extras = {}
        for name, array in self.extras.items():
            if name not in steps.extras:
                raise ConfigError(f"The ring stores {name!r}, but the steps carry only {sorted(steps.extras)}.")
            extras[name] = rows_for(array, steps.extras[name], name)
        ended = None  # where, in T * N, episodes ended
        if np.count_nonzero(steps.terminated) or np.count_nonzero(steps.truncated) or len(steps.final_index):
            ended = np.flatnonzero(steps.terminated | steps.truncated)
            if ended.tolist() != (steps.final_index[:, 0] * count + steps.final_index[:, 1]).tolist():
                raise EtudeError(
                    f"Final observations were given for the rows (t, n) {steps.final_index.tolist()}; expected one for "
                    f"each that ended an episode, in order: {np.argwhere(steps.terminated | steps.truncated).tolist()}."
                )
        together = self._even and columns == self._columns
        head = int(self.head[0])
        if together and head + times < self.slots:
            start, end = head * self.environments, (head + times) * self.environments
            where: Where = slice(start, end)
            pending: Where = slice(end, end + self.environments)
            touched: Where = slice(start, end + self.environments)
        else:
            if len(set(columns)) != len(columns) or min(columns) < 0 or max(columns) >= self.environments:
                raise ConfigError(
                    f"Steps of the environments {columns} do not fit a ring of {self.environments} environments; "
                    f"expected different numbers from 0 to {self.environments - 1}."
                )
            slots = (self.head[columns] + np.arange(times + 1)[:, None]) % self.slots
            touched = places = (slots * self.environments + steps.columns).reshape(-1)
            where, pending = places[: -len(columns)], places[-len(columns) :]
        if True in steps.restarted.tolist():
            self.cut(steps.columns[steps.restarted])
        self._release(touched)
        if ended is not None:
            self.kind[where] = (steps.terminated.view(np.uint8) | (steps.truncated.view(np.uint8) << 1)).reshape(-1)
            rows = ended + where.start if isinstance(where, slice) else where[ended]
            self.observations.end(rows, steps.final_observation)
        self.observations.write(where, observation, pending, steps.next_observation)
        self.action[where], self.reward[where] = action, reward
        for name, values in extras.items():
            self.extras[name][where] = values
        if together:
            self.head[:] = (head + times) % self.slots
            self.filled[:] = size = min(int(self.filled[0]) + times, self.limit)
            self.written += times
            self._length = size * self.environments
            self.version += 1
        else:
            self.head[columns] = (self.head[columns] + times) % self.slots
            self.filled[columns] = np.minimum(self.filled[columns] + times, self.limit)
            self.written[columns] += times
            self._settle()
        return where

    def locate(self, positions: np.ndarray, newest: np.ndarray | None = None) -> np.ndarray:
        """Flat rows for positions in [0, len(self)), one for each stored row; of the shape of `positions`.

        newest: [N] only that many of the newest rows of each column count; positions are in [0, sum(newest)).
        """
        counts = self.filled if newest is None else newest
        if self._even and newest is None:
            oldest = (int(self.head[0]) - int(counts[0])) % self.slots
            return positions if oldest == 0 else (positions + oldest * self.environments) % self.rows
        bounds = np.cumsum(counts)
        column = np.searchsorted(bounds, positions, side="right")
        offset = positions - (bounds - counts)[column]
        slot = (self.head[column] - counts[column] + offset) % self.slots
        return slot * self.environments + column

    def later(self, steps: int) -> Ring:
        """As it will be when so many more time steps of all columns are stored, for selectors, which only locate rows
        in it."""
        then = copy.copy(self)
        then.head, then.filled = (self.head + steps) % self.slots, np.minimum(self.filled + steps, self.limit)
        then._settle()
        return then

    def oldest(self, counts: np.ndarray) -> np.ndarray:
        """The flat rows of the `counts` [N] oldest steps of each column, column by column: [sum(counts)]."""
        return self.rows_from(self.head - self.filled, counts)

    def rows_from(self, slots: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The flat rows of `counts` [N] steps of each column from these slots on, column by column: [sum(counts)]."""
        column = np.repeat(np.arange(self.environments), counts)
        offset = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
        return (slots[column] + offset) % self.slots * self.environments + column

    def vacant(self) -> np.ndarray:
        """The flat rows from each head on that hold no step even in a full ring: [N * frame_stack]."""
        slots = (self.head + np.arange(self.frame_stack)[:, None]) % self.slots
        return (slots * self.environments + np.arange(self.environments)).reshape(-1)

    def following_part(self, key: str, rows: np.ndarray) -> Tree:
        """The part of this key of Dict observations that followed these rows."""
        return self.observations.part(key).after(rows)

    def actions(self, rows: np.ndarray) -> np.ndarray:
        """The actions of these rows: [*rows.shape, ...]."""
        return self.action.take(rows, 0)

    def outcome(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards [*rows.shape, ...] and `kind` [*rows.shape] of these rows, as arrays of their own."""
        return self.reward.take(rows, 0), self.kind.take(rows)

    def stored(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The extras of these rows, or those of these names."""
        return {name: self.extras[name].take(rows, 0) for name in (self.extras if names is None else names)}

    def state(self) -> dict[str, Any]:
        """Arrays and numbers for `restore`. The arrays are views of the ring: write them before the next `add`."""
        used = self._used()
        rows = used * self.environments
        return {
            "built": self.built(),
            "slots": used,
            "head": self.head.copy(),
            "filled": self.filled.copy(),
            "kind": self.kind[:rows],
            "action": self.action[:rows],
            "reward": self.reward[:rows],
            "extras": {name: array[:rows] for name, array in self.extras.items()},
            "observations": self.observations.state(rows),
        }

    def check_state(self, saved: Stored) -> int:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed. Returns how many rows
        are stored in it."""
        parts = ("built", "slots", "head", "filled", "kind", "action", "reward", "extras", "observations")
        held = saved.fields(parts)
        was, now = held["built"].table(), self.built()
        differ = [f"{name} was {was[name].value if name in was else None!r:.300}, is {own!r:.300}"
                  for name, own in now.items() if name not in was or was[name].value != own]  # fmt: skip
        if differ:
            raise CheckpointError(
                f"The saved replay does not fit this ring: {'; '.join(differ)}. Build the ring as it was when saved."
            )
        slots = held["slots"].whole(1, self.slots)
        rows, part = slots * self.environments, slots < self.slots
        head = held["head"].array(np.int64, self.head.shape, 0, slots - 1)
        filled = held["filled"].array(np.int64, self.filled.shape, 0, head if part else self.limit)
        kind = held["kind"].array(np.uint8, (rows,), 0, EDGE)
        if kind[head * self.environments + np.arange(self.environments)].any():
            held["kind"].refuse("0 at the heads", "the end of an episode where none is stored")
        limits = spaces_.limits(self.spaces.observation)
        ended = np.flatnonzero(kind & (TERMINATED | TRUNCATED))
        self.observations.check_state(held["observations"], rows, ended, limits)
        held["action"].array(self.action.dtype, (rows, *self.action.shape[1:]), *spaces_.limits(self.spaces.action)[0])
        held["reward"].array(np.float32, (rows, *self.reward.shape[1:]))
        extras = held["extras"].fields(self.extras)
        for name, array in self.extras.items():
            extras[name].array(array.dtype, (rows, *array.shape[1:]))
        return int(filled.sum())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.clear()
        rows = int(state["slots"]) * self.environments
        self.kind[:rows], self.reward[:rows] = state["kind"], state["reward"]
        self.action[:rows] = spaces_.within(self.spaces.action, state["action"])  # earlier versions kept samples
        for name, array in self.extras.items():
            array[:rows] = state["extras"][name]
        self.observations.restore(state["observations"], rows)
        self.head[:], self.filled[:] = state["head"], state["filled"]
        self._settle()

    def built(self) -> dict[str, Any]:
        """What rows and columns it has, as plain data."""
        return {
            **{name: getattr(self, name) for name in ("capacity", "environments", "frame_stack")},
            "observation": spaces_.to_json(self.spaces.observation),
            "action": spaces_.to_json(self.spaces.action),
            "reward": list(self.reward.shape[1:]),
            "extras": {name: [list(array.shape[1:]), str(array.dtype)] for name, array in self.extras.items()},
        }

    def _used(self) -> int:
        """How many slots, from the first, have ever been written."""
        return int(self.head.max()) + 1 if (self.kind[-self.environments :] == EDGE).all() else self.slots

    def _settle(self) -> None:
        """Derive what follows from heads and counts."""
        self._length = int(self.filled.sum())
        self._even = bool((self.head == self.head[0]).all() and (self.filled == self.filled[0]).all())
        self.version += 1

    def _release(self, touched: Where) -> None:
        """Forget how episodes ended in these rows."""
        kind = self.kind[touched]
        if np.count_nonzero(kind):
            self.observations.release(numbers(touched)[kind & (TERMINATED | TRUNCATED) != 0])
            self.kind[touched] = 0

    def cut(self, columns: np.ndarray) -> None:
        """Nothing continues the newest rows of these columns: they become truncations that end in what is pending."""
        self.version += 1
        pending = self.head[columns] * self.environments + columns
        rows = (pending - self.environments) % self.rows
        open_ = self.kind[rows] == 0
        rows, pending = rows[open_], pending[open_]
        self.kind[rows] = TRUNCATED
        self.observations.cut(rows, pending)
