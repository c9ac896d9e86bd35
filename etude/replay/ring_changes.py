"""What changed in a ring since its rows were saved last, so that a ring that lives long is written row by row.

Changes are patches of `Ring.state`, as plain data: the rows that were written, and of the observations beside the ring
those that these rows need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.errors import CheckpointError
from etude.replay.ring import Ring

PARTS = ("built", "slots", "head", "filled", "rows")
# Of the state of an `ObservationStore`; the array of its name without the s has the numbers of what is in it.
STORE = {"used", "free"}


class RingChanges:
    """Follows what is written to a ring. saved: whether all that it holds now is saved already."""

    def __init__(self, ring: Ring, saved: bool):
        self.ring = ring
        self._written, self._filled, self._rows = ring.written.copy(), ring.filled.copy(), 0
        if saved:
            self._rows = len(ring.state()["kind"])
        else:
            self._filled -= 1  # no column was ever like this: all rows count as changed

    def take(self) -> dict[str, Any]:
        """The changes since the last call, for `ring_state`. Arrays are copies."""
        ring = self.ring
        new = ring.written - self._written
        grown = np.minimum(self._filled + new, ring.limit)
        state, before = ring.state(), self._rows
        self._written, self._filled, self._rows = ring.written.copy(), ring.filled.copy(), len(state["kind"])
        if (grown != ring.filled).any() or (new >= ring.limit).any():
            rows = np.arange(self._rows)
        else:  # from the row before the new ones, which may have been cut, to the pending one
            rows = np.union1d(ring.rows_from(ring.head - new - 1, new + 2), np.arange(before, self._rows))
            rows = rows[rows < self._rows]
        patch = {name: state.pop(name) for name in PARTS if name in state}
        return {**patch, "rows": rows, "arrays": _part(state, rows)}


def ring_state(changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of a ring from the changes that led to it, the oldest first; what they lack was never written, or is
    not stored any more. CheckpointError where they are no such changes."""
    state: dict[str, Any] = {}
    for patch in changes:
        count, changed = _changed(patch)
        try:
            state = _patched(state, patch["arrays"], changed, count)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"Saved rows of a replay do not fit each other: {error}. Their file was changed."
            ) from error
        state |= {name: patch[name] for name in PARTS if name != "rows"}
    return state


def covers(changes: Sequence[dict[str, Any]]) -> bool:
    """Whether changes, the newest first, hold every row of the ring after the newest one."""
    held = np.zeros(_changed(changes[0])[0], bool)
    for patch in changes:
        rows = _changed(patch)[1]
        held[rows[rows < len(held)]] = True
    return bool(held.all())


def _changed(patch: Any) -> tuple[int, np.ndarray]:
    """(rows of the state after a patch, those that the patch has). CheckpointError where it is none."""
    held = Stored(patch, "replay").fields((*PARTS, "arrays"))
    count = held["slots"].whole(1) * len(held["head"].array(np.int64, (None,), 0))
    return count, held["rows"].array(np.int64, (None,), 0, count - 1)


def _part(state: Any, rows: np.ndarray) -> Any:
    """These rows of every array in nested dicts."""
    if isinstance(state, np.ndarray):
        return state[rows]
    found = {name: _part(part, rows) for name, part in state.items() if not _is_store(part)}
    for name in state.keys() - found.keys():
        store = state[name]
        numbers = np.unique(state[name.removesuffix("s")][rows])
        numbers = numbers[(numbers >= 0) & (numbers < store["used"])].astype(np.int64)
        leaves = {leaf: array[numbers] for leaf, array in store.items() if leaf not in STORE}
        found[name] = {"used": store["used"], "free": store["free"], "numbers": numbers, **leaves}
    return found


def _patched(old: Any, patch: Any, rows: np.ndarray, count: int) -> Any:
    """The arrays of a state, of so many rows, after a patch of these rows; zeros where nothing was written."""
    if isinstance(patch, np.ndarray):
        return _put(old, patch, rows, count)
    found = {}
    for name, part in patch.items():
        before = (old or {}).get(name)
        if not _is_store(part):
            found[name] = _patched(before, part, rows, count)
            continue
        leaves = {leaf: array for leaf, array in part.items() if leaf not in (*STORE, "numbers")}
        used, numbers = int(part["used"]), part["numbers"]
        put = {leaf: _put((before or {}).get(leaf), array, numbers, used) for leaf, array in leaves.items()}
        found[name] = {"used": used, "free": part["free"], **put}
    return found


def _put(old: np.ndarray | None, values: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """An array [count, ...] with these values at these places, and what an older one held at the others."""
    if len(values) != len(places):
        raise ValueError(f"{len(values)} values for {len(places)} rows")
    array = np.zeros((count, *values.shape[1:]), values.dtype)
    if old is not None:
        array[: min(len(old), count)] = old[:count]
    array[places] = values
    return array


def _is_store(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() >= STORE
