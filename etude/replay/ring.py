"""The ring: the newest transitions of N environments, each observation stored once.

Slots are rows of all columns (environments): the flat row `slot * environments + column` holds an observation, the
action chosen for it, the reward, and how the step ended. The next slot of the column holds what followed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from etude import spaces as spaces_
from etude import trees
from etude.data import Steps
from etude.errors import CheckpointError, ConfigError, EtudeError
from etude.replay import memory
from etude.replay.frames import FrameStacks, newest_frames
from etude.replay.observations import Where, Whole, flat, numbers, require_shape
from etude.spaces import Spaces
from etude.trees import Tree

TERMINATED, TRUNCATED = 1, 2  # bits of `kind`; 0 where the episode goes on in the next slot
EDGE = 4  # nothing is stored here, and what follows begins a column

Extras = dict[str, tuple[tuple[int, ...], Any]]  # name -> (shape of one row, dtype)


class Ring:
    """The newest `capacity` environment steps of `environments` columns, `capacity // environments` of each.

    capacity: environment steps, counted over all columns. extras: what is stored with every row (log_prob, ...).
    frame_stack: stacks of this many uint8 images along the last axis are stored frame by frame (see `frames`).

    Every stored row can be sampled: what followed is in the next slot (for the newest row of a column, at its head) or,
    where an episode ended, beside the ring. Raises ConfigError where memory does not suffice.
    """

    def __init__(
        self, spaces: Spaces, capacity: int, environments: int = 1, extras: Extras | None = None, frame_stack: int = 1
    ):
        if capacity < environments or environments < 1 or frame_stack < 1:
            raise ConfigError(
                f"A ring of capacity {capacity}, environments {environments} and frame_stack {frame_stack} cannot be; "
                "expected at least one step of each of at least one environment."
            )
        memory.require(
            bytes_needed(spaces, capacity, environments, extras, frame_stack),
            f"A replay of {capacity:,} steps",
            "Lower its capacity (`replay_size` in the configs).",
        )
        self.spaces, self.capacity, self.environments, self.frame_stack = spaces, capacity, environments, frame_stack
        self.limit = capacity // environments  # rows of a column
        self.slots = self.limit + frame_stack  # the head, and the older frames of the oldest stack, come on top
        self.rows = self.slots * environments
        self.kind = np.zeros(self.rows, np.uint8)  # [rows] how each step ended
        self.kind[-environments:] = EDGE
        template = spaces_.zeros(spaces.observation)
        self.observations: Whole | FrameStacks = (
            Whole(template, self.rows)
            if frame_stack == 1
            else FrameStacks(template, self.kind, environments, frame_stack)
        )
        self.action: np.ndarray = spaces_.zeros(spaces.action, self.rows)
        self.reward = np.zeros(self.rows, np.float32)
        self.extras = {name: np.zeros((self.rows, *shape), dtype) for name, (shape, dtype) in (extras or {}).items()}
        self.head = np.zeros(environments, np.int64)  # [N] the slot that the next row of each column goes to
        self.filled = np.zeros(environments, np.int64)  # [N] rows of each column
        self._columns = list(range(environments))
        self.version = 0  # changes whenever the contents do
        self._length, self._even = 0, True

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
        self._settle()

    def add(self, steps: Steps) -> Where:
        """Append rows to the columns that `steps` names, over the oldest ones. Returns the flat rows written."""
        times, columns = steps.shape[0], steps.columns.tolist()
        if times > self.limit:
            return self._add_in_parts(steps)
        ended = self._verify(steps)
        together = self._even and columns == self._columns
        head = int(self.head[0])
        if together and head + times < self.slots:
            start, end = head * self.environments, (head + times) * self.environments
            where: Where = slice(start, end)
            pending: Where = slice(end, end + self.environments)
            touched: Where = slice(start, end + self.environments)
        else:
            touched = self._places(times, steps.columns)
            where, pending = touched[: -len(columns)], touched[-len(columns) :]
        if True in steps.restarted.tolist():
            self._cut(steps.columns[steps.restarted])
        self._release(touched)
        self._write(where, pending, steps, ended)
        if together:
            self.head[:] = (head + times) % self.slots
            self.filled[:] = size = min(int(self.filled[0]) + times, self.limit)
            self._length = size * self.environments
            self.version += 1
        else:
            self.head[columns] = (self.head[columns] + times) % self.slots
            self.filled[columns] = np.minimum(self.filled[columns] + times, self.limit)
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

    def ahead(self, rows: np.ndarray, count: int | np.ndarray = 1) -> np.ndarray:
        """The flat rows `count` slots later in the same columns."""
        return (rows + count * self.environments) % self.rows

    def until_head(self, rows: np.ndarray) -> np.ndarray:
        """How many stored rows there are from each row to the newest of its column, both included."""
        return (self.head[rows % self.environments] - rows // self.environments) % self.slots

    def observation(self, rows: np.ndarray) -> Tree:
        """What the actions of these rows were chosen for: [*rows.shape, ...]."""
        return self.observations.at(rows)

    def following(self, rows: np.ndarray) -> Tree:
        """The true observations that followed these rows: [*rows.shape, ...]."""
        return self.observations.after(rows, self.ahead(rows), self.kind.take(rows))

    def stored(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The extras of these rows."""
        return {name: array.take(rows, 0) for name, array in self.extras.items()}

    def check(self) -> None:
        """Raise EtudeError where an invariant does not hold."""
        faults = []
        if (self.filled < 0).any() or (self.filled > self.limit).any() or (self.head >= self.slots).any():
            faults.append(f"heads {self.head} or counts {self.filled} are out of range")
        if self._length != self.filled.sum():
            faults.append(f"the length is {self._length}, the columns hold {self.filled.sum()}")
        if self._even and not ((self.head == self.head[0]).all() and (self.filled == self.filled[0]).all()):
            faults.append("columns of different fill are treated as one")
        if self.kind[self.head * self.environments + np.arange(self.environments)].any():
            faults.append("a pending observation is marked as the end of an episode")
        faults += self.observations.check(np.flatnonzero(self.kind & (TERMINATED | TRUNCATED)))
        if faults:
            raise EtudeError("The ring is inconsistent: " + "; ".join(faults) + ".")

    def state(self) -> dict[str, Any]:
        """Arrays and numbers for `restore`. The arrays are views of the ring: write them before the next `add`."""
        used = self._used()
        rows = used * self.environments
        return {
            "built": self._built(),
            "slots": used,
            "head": self.head.copy(),
            "filled": self.filled.copy(),
            "kind": self.kind[:rows],
            "action": self.action[:rows],
            "reward": self.reward[:rows],
            "extras": {name: array[:rows] for name, array in self.extras.items()},
            "observations": self.observations.state(rows),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; CheckpointError where it is that of a ring that was built otherwise."""
        built = self._built()
        differ = [f"{name} was {state['built'].get(name)!r}, is {now!r}" for name, now in built.items()
                  if state["built"].get(name) != now]  # fmt: skip
        if differ:
            raise CheckpointError(
                f"The saved replay does not fit this ring: {'; '.join(differ)}. Build the ring as it was when saved."
            )
        self.clear()
        rows = int(state["slots"]) * self.environments
        for name in ("kind", "action", "reward"):
            getattr(self, name)[:rows] = state[name]
        for name, array in self.extras.items():
            array[:rows] = state["extras"][name]
        self.observations.restore(state["observations"], rows)
        self.head[:], self.filled[:] = state["head"], state["filled"]
        self._settle()

    def _built(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "environments": self.environments,
            "frame_stack": self.frame_stack,
            "observation": spaces_.to_json(self.spaces.observation),
            "action": spaces_.to_json(self.spaces.action),
            "extras": {name: [list(array.shape[1:]), str(array.dtype)] for name, array in self.extras.items()},
        }

    def _used(self) -> int:
        """How many slots, from the first, have ever been written."""
        untouched = (self.kind[-self.environments :] == EDGE).all()
        return int(self.head.max()) + 1 if untouched else self.slots

    def _settle(self) -> None:
        """Derive what follows from heads and counts."""
        self._length = int(self.filled.sum())
        self._even = bool((self.head == self.head[0]).all() and (self.filled == self.filled[0]).all())
        self.version += 1

    def _places(self, times: int, columns: np.ndarray) -> np.ndarray:
        """The flat rows of the next `times` slots of these columns, and of the heads after them: [(times + 1) * n]."""
        if len(np.unique(columns)) != len(columns) or columns.min() < 0 or columns.max() >= self.environments:
            raise ConfigError(
                f"Steps of the environments {columns.tolist()} do not fit a ring of {self.environments} environments; "
                f"expected different numbers from 0 to {self.environments - 1}."
            )
        slots = (self.head[columns] + np.arange(times + 1)[:, None]) % self.slots
        return (slots * self.environments + columns).reshape(-1)

    def _verify(self, steps: Steps) -> np.ndarray | None:
        """Refuse what does not fit before anything is changed. Returns where, in T * N, episodes ended: [E]."""
        self.observations.verify(steps)
        require_shape(self.action, steps.action, "action")
        for name, array in self.extras.items():
            if name not in steps.extras:
                raise ConfigError(f"The ring stores {name!r}, but the steps carry only {sorted(steps.extras)}.")
            require_shape(array, steps.extras[name], name)
        given = len(steps.final_index)
        if not (np.count_nonzero(steps.terminated) or np.count_nonzero(steps.truncated) or given):
            return None
        ended = np.flatnonzero(steps.terminated | steps.truncated)
        places = steps.final_index[:, 0] * steps.shape[1] + steps.final_index[:, 1]
        if ended.tolist() != places.tolist():
            raise EtudeError(
                f"Final observations were given for the rows (t, n) {steps.final_index.tolist()}; expected one for "
                f"each that ended an episode, in order: {np.argwhere(steps.terminated | steps.truncated).tolist()}."
            )
        return ended

    def _release(self, touched: Where) -> None:
        """Forget how episodes ended in these rows."""
        kind = self.kind[touched]
        if np.count_nonzero(kind):
            self.observations.release(numbers(touched)[kind & (TERMINATED | TRUNCATED) != 0])
            self.kind[touched] = 0

    def _write(self, where: Where, pending: Where, steps: Steps, ended: np.ndarray | None) -> None:
        if ended is not None:
            self.kind[where] = (steps.terminated.view(np.uint8) | (steps.truncated.view(np.uint8) << 1)).reshape(-1)
            rows = ended + where.start if isinstance(where, slice) else where[ended]
            self.observations.end(rows, steps.final_observation)
        self.observations.write(where, pending, steps)
        self.action[where] = flat(self.action, steps.action)
        self.reward[where] = steps.reward.reshape(-1)
        for name, array in self.extras.items():
            array[where] = flat(array, steps.extras[name])

    def _cut(self, columns: np.ndarray) -> None:
        """Nothing continues the newest rows of these columns: they become truncations that end in what is pending."""
        columns = columns[self.filled[columns] > 0]
        pending = self.head[columns] * self.environments + columns
        rows = (pending - self.environments) % self.rows
        open_ = self.kind[rows] == 0
        rows, pending = rows[open_], pending[open_]
        self.kind[rows] = TRUNCATED
        self.observations.cut(rows, pending)

    def _add_in_parts(self, steps: Steps) -> Where:
        """Steps of more time than the ring holds: the older ones are overwritten at once, but episodes stay whole."""
        where: Where = slice(0, 0)
        for start in range(0, len(steps.reward), self.limit):
            where = self.add(_cut_out(steps, start, min(start + self.limit, len(steps.reward))))
        return where


def bytes_needed(
    spaces: Spaces, capacity: int, environments: int = 1, extras: Extras | None = None, frame_stack: int = 1
) -> int:
    """Bytes that such a ring takes, known before it is built. One observation for each episode in it comes on top."""
    template = spaces_.zeros(spaces.observation)
    observation = trees.count_bytes(template if frame_stack == 1 else newest_frames(template, frame_stack))
    action = trees.count_bytes(spaces_.zeros(spaces.action))
    extra = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in (extras or {}).values())
    reward, kind, final, start = 4, 1, 4, 4 * (frame_stack > 1)
    row = observation + action + extra + reward + kind + final + start
    return (capacity // environments + frame_stack) * environments * row


def _cut_out(steps: Steps, start: int, end: int) -> Steps:
    """The rows from `start` up to `end`."""
    times = len(steps.reward)
    finals = (steps.final_index[:, 0] >= start) & (steps.final_index[:, 0] < end)
    return replace(
        steps,
        observation=trees.rows(steps.observation, slice(start, end)),
        action=steps.action[start:end],
        reward=steps.reward[start:end],
        terminated=steps.terminated[start:end],
        truncated=steps.truncated[start:end],
        next_observation=steps.next_observation if end == times else trees.rows(steps.observation, end),
        final_observation=trees.rows(steps.final_observation, finals),
        final_index=steps.final_index[finals] - np.array([start, 0]),
        restarted=steps.restarted if start == 0 else np.zeros_like(steps.restarted),
        extras={name: array[start:end] for name, array in steps.extras.items()},
    )
