"""Which rows of a ring make up the batches.

`adjust(hyper)` takes over hyperparameters. `select(ring, k, n, rng)` returns flat rows [k, n] and importance weights
[k, n], `importance(ring, rows)` their weights before they are divided by the largest of a batch. `added(ring, rows)`
reports the rows just written (`ring.vacant()` then lists those that were overwritten); `removed(ring, rows)` those that
were trimmed or cleared; `update(rows, errors, ratios)` the errors, and probability ratios, [k, n] of sampled rows. The
selectors ignore these reports but for `Prioritised`, which draws by a tree of sums, and `NewFirst`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base.checks import Stateless, Stored, whole_number
from etude.base.errors import ConfigError, NumericalError
from etude.replay.observations import Where, numbers
from etude.replay.ring import Ring
from etude.replay.storage import require_memory

Selection = tuple[np.ndarray, np.ndarray]  # rows [k, n] int64, weights [k, n] float32


class Selector(Stateless):
    """Samples rows of a ring; the base of those that ignore which rows were added, removed and updated."""

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        """Rows and their weights."""
        raise NotImplementedError

    def importance(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """All rows count the same."""
        return np.ones(rows.shape, np.float32)

    def added(self, ring: Ring, rows: Where) -> None: ...

    def removed(self, ring: Ring, rows: Where) -> None: ...

    def update(self, rows: np.ndarray, errors: np.ndarray, ratios: np.ndarray | None = None) -> None: ...

    def check_state(self, saved: Stored, stored: int = 0) -> None:
        saved.fields(())


class Uniform(Selector):
    """Every stored row with the same probability, with replacement."""

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        return ring.locate(rng.integers(0, len(ring), (k, n))), np.ones((k, n), np.float32)


class NewFirst(Uniform):
    """Rows that were not selected before come first in each batch, the oldest first, with weight 1; the others are
    drawn as `Uniform` does, with weight 0.

    rows: `ring.rows`. most: of those that come first, in a batch.
    """

    def __init__(self, rows: int, most: int):
        self._rows, self._most = rows, most
        self._new = np.zeros(0, np.int64)  # flat rows, the oldest first

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        (rows, _), weight = super().select(ring, k, n, rng), np.zeros((k, n), np.float32)
        count = min(len(self._new), k * self._most)
        place = np.arange(count) // self._most, np.arange(count) % self._most
        rows[place], weight[place] = self._new[:count], 1.0
        self._new = self._new[count:]
        return rows, weight

    def added(self, ring: Ring, rows: Where) -> None:
        self.removed(ring, np.append(numbers(rows), ring.vacant()))
        self._new = np.append(self._new, numbers(rows))

    def removed(self, ring: Ring, rows: Where) -> None:
        self._new = self._new[~np.isin(self._new, numbers(rows))]

    def state(self) -> dict[str, Any]:
        return {"new": self._new}

    def check_state(self, saved: Stored, stored: int = 0, rows: int | None = None) -> None:
        saved.fields(("new",))["new"].array(np.int64, (None,), 0, (self._rows if rows is None else rows) - 1)

    def restore(self, state: dict[str, Any]) -> None:
        self._new = np.array(state["new"])

    def moved(self, state: dict[str, Any], there: np.ndarray, here: np.ndarray) -> dict[str, Any]:
        """The state for a ring whose rows `here` hold what `there` held; see `Prioritised.moved`."""
        found = dict(zip(there.tolist(), here.tolist(), strict=True))
        return {"new": np.array([found[row] for row in state["new"].tolist() if row in found], np.int64)}


class BestEpisodes(Selector):
    """Rows of whole episodes, with the same probability, with replacement.

    best: of the episodes with the highest returns alone, which are this share of all, at least one. first: the first
    row of each alone, so that every episode is as likely.
    """

    def __init__(self, best: float = 1.0, first: bool = False):
        self.best, self.first = best, first
        self._rows, self._basis = np.zeros(0, np.int64), (-1, -1.0)

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present share."""
        self.best = hyper.get("best", self.best)

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        rows = self.rows(ring)
        return rows[rng.integers(0, len(rows), (k, n))], np.ones((k, n), np.float32)

    def rows(self, ring: Ring) -> np.ndarray:
        """Those that are drawn from."""
        if self._basis != (basis := (ring.version, self.best)):
            self._rows, self._basis = self._found(ring), basis
        return self._rows

    def _found(self, ring: Ring) -> np.ndarray:
        rows = ring.oldest(ring.filled)
        column = rows % ring.environments
        starts = ring.episodes.begins(rows)
        boundary = starts | np.append(True, column[1:] != column[:-1])
        number = np.cumsum(boundary) - 1
        last = np.append(np.flatnonzero(boundary)[1:] - 1, len(rows) - 1)
        whole = np.flatnonzero(starts[boundary] & (ring.kind.take(rows[last]) != 0))
        if not len(whole):
            raise ConfigError(f"The replay holds no whole episode in {len(ring)} steps; expected at least one.")
        earned = np.bincount(number, ring.reward.take(rows))[whole]
        chosen = whole[np.argsort(-earned, kind="stable")[: max(1, round(self.best * len(whole)))]]
        taken = np.zeros(len(last), bool)
        taken[chosen] = True
        return rows[taken[number] & (boundary if self.first else True)]


class Passes(Selector):
    """Shuffled passes over all rows that go on from call to call. A new one begins where a pass is through, or rows
    came or went since the last call; the few rows that would make a smaller last batch sit out. ConfigError if there
    are fewer rows than a batch has.

    A pass is not saved: between two learning phases there are new rows, and with them a new pass.
    """

    def __init__(self) -> None:
        self._left = np.zeros(0, np.int64)  # positions of this pass that are still to come
        self._version = -1  # of the ring that it passes over

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        if len(ring) < n:
            raise ConfigError(
                f"A batch of {n} was asked for, but the replay holds {len(ring)} steps; expected a batch that is no "
                "larger. Lower the batch size or collect more steps."
            )
        if ring.version != self._version:
            self._left, self._version = self._left[:0], ring.version
        parts, wanted = [], k
        while wanted:
            if len(self._left) < n:
                self._left = rng.permutation(len(ring))
            batches = min(wanted, len(self._left) // n)
            parts.append(self._left[: batches * n])
            self._left = self._left[batches * n :]
            wanted -= batches
        return ring.locate(np.concatenate(parts).reshape(k, n)), np.ones((k, n), np.float32)


class Epochs(Selector):
    """Shuffled passes over all rows, for on-policy learning. Each pass is a new permutation, cut into `len(ring) // n`
    batches; the few rows that would make a smaller last one sit out that pass. ConfigError if there are fewer."""

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        if len(ring) < n:
            raise ConfigError(
                f"A batch of {n} was asked for, but the rollout holds {len(ring)} steps; expected a batch that is "
                "no larger. Lower the minibatch size or collect more steps."
            )
        return ring.locate(_shuffled_passes(len(ring), k, n, rng)), np.ones((k, n), np.float32)


class ColumnEpochs(Selector):
    """Shuffled passes over the columns, each by its oldest row, or over the parts of `length` rows that each is cut
    into, by the oldest row of each; as `Epochs` over rows.

    length: None for whole columns; the oldest rows that would make a shorter part are left out.
    """

    def __init__(self, length: int | None = None):
        self.length = length

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        length = ring.filled if self.length is None else np.full_like(ring.filled, self.length)
        parts = ring.filled // np.maximum(length, 1)
        total = int(parts.sum())
        if total < n:
            raise ConfigError(
                f"A batch of {n} unrolls was asked for, but there are {total} of {ring.environments} environments; "
                "expected a batch that is no larger. Lower the minibatch size."
            )
        drawn = _shuffled_passes(total, k, n, rng)
        column = np.repeat(np.arange(ring.environments), parts)[drawn]
        before_head = np.concatenate([np.arange(1, count + 1) for count in parts])[drawn] * length[column]
        slot = (ring.head[column] - before_head) % ring.slots
        return slot * ring.environments + column, np.ones((k, n), np.float32)


def _shuffled_passes(total: int, k: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """k batches of n out of 0 to total - 1, [k, n]: permutations, less what would make a smaller last batch."""
    per_pass = total // n
    passes = [rng.permutation(total)[: per_pass * n] for _ in range(-(-k // per_pass))]
    return np.concatenate(passes)[: k * n].reshape(k, n)


# The nodes of a level this wide and of those above it are few: whole levels are added up, or searched through a
# running total, in less time than it takes to pick single nodes from them.
WIDE = 1024


class SumTree:
    """`size` values of at least 0, float64. Node 1 is the total; the children of node i are 2 i and 2 i + 1.

    Every node is exactly the rounded sum of its children after any number of changes: errors never build up.
    """

    def __init__(self, size: int):
        whole_number("SumTree: size", size)
        self.size = size
        self.depth: int = (size - 1).bit_length()
        self.nodes: np.ndarray = np.zeros(2 << self.depth)
        self._first = 1 << self.depth  # the node of value 0
        self._pairs = self.nodes.reshape(-1, 2)  # row i: the children of node i
        self._top = min(self._first, WIDE)  # nodes of the level that searches start from
        self._running = np.zeros(self._top + 1)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    def values(self, leaves: np.ndarray) -> np.ndarray:
        """The values [m] at `leaves` [m]."""
        return self.nodes.take(leaves + self._first)

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Change the values at `leaves` [m] to `values` [m]. Of a leaf that is named twice, the last value counts.

        ConfigError, and nothing changed, where a leaf is not in [0, size) or a value is negative, NaN or infinite.
        """
        if not len(leaves):
            return
        if leaves.min() < 0 or leaves.max() >= self.size:
            raise ConfigError(
                f"SumTree: leaves from {leaves.min()} to {leaves.max()}; expected numbers from 0 to {self.size - 1}."
            )
        _require_values(values)
        nodes = leaves + self._first
        _put_last(self.nodes, nodes, values)
        level = self._first
        while level > max(WIDE, 8 * len(nodes)):
            level >>= 1
            nodes >>= 1
            pairs = self._pairs.take(nodes, 0)
            self.nodes[nodes] = pairs[:, 0] + pairs[:, 1]
        self._add_up(level)

    def fill(self, values: np.ndarray) -> None:
        """Change all values, [size]. ConfigError, and nothing changed, where one is negative, NaN or infinite."""
        _require_values(values)
        self.nodes[self._first : self._first + self.size] = values
        self._add_up(self._first)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The leaves [m] in which the running total of all values passes each of `masses` [m] in [0, total].

        A leaf of value 0 is never among them, however sums and masses were rounded. ConfigError where all values are 0.
        """
        if not self.nodes[1] > 0:
            raise ConfigError("SumTree: every value is 0; expected one above 0. Set values before you look for any.")
        top, running = self._top, self._running
        np.cumsum(self.nodes[top : 2 * top], out=running[1:])
        nodes = running[1:].searchsorted(masses, "right")
        np.minimum(nodes, running[1:].searchsorted(running[-1]), out=nodes)  # the last one that adds anything
        rest = masses - running.take(nodes)
        nodes += top
        starts, begun = nodes.copy(), rest.copy()
        for _ in range(self.depth - top.bit_length() + 1):
            nodes += nodes
            left = self.nodes.take(nodes)
            right = rest >= left
            rest -= left * right
            nodes += right
        lost = self.nodes.take(nodes) == 0
        if lost.any():  # sums that were rounded differently led beyond the last value of a part
            nodes[lost] = [self._descend(*start) for start in zip(starts[lost], begun[lost], strict=True)]
        return nodes - self._first

    def _add_up(self, level: int) -> None:
        """Recompute all nodes above the level that begins with node `level`."""
        while level > 1:
            below, level = level, level >> 1
            children = self.nodes[below : 2 * below]
            np.add(children[::2], children[1::2], out=self.nodes[level:below])

    def _descend(self, node: int, rest: float) -> int:
        """As `find` from one node on, but never into a part whose values are all 0."""
        while node < self._first:
            left, right = self._pairs[node]
            node = 2 * node
            if rest >= left and right > 0:
                node, rest = node + 1, rest - left
        return node


def _put_last(array: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """`array[places] = values`; of a place that is named twice the last value counts, which NumPy does not promise."""
    array[places] = values
    if not np.array_equal(array.take(places), values):
        _, back = np.unique(places[::-1], return_index=True)
        last = len(places) - 1 - back
        array[places[last]] = values[last]


def _require_values(values: np.ndarray) -> None:
    if not (values.min() >= 0 and values.max() < np.inf):
        raise ConfigError(
            f"SumTree: values from {values.min()} to {values.max()}; expected finite numbers of at least 0."
        )


NOT_STORED = -1.0  # in place of the error of a row that cannot be drawn
LEAST, MOST = 1e-140, 1e140  # of a priority: none is 0, and no sum or ratio of them infinite, whatever alpha is
ROW_BYTES = 4 + 4 + 2 * 2 * 8  # error, deviation, and nodes of a tree that may be twice as wide as the rows


class Prioritised(Selector):
    """Proportional prioritisation: rows are drawn with probability P = p / sum(p), p = (|error| + small)**alpha. Schaul
    et al. 2016, arXiv:1511.05952.

    Draws are stratified within each batch of n: one in each n-th of the total (appendix B.2.1). With `initial_ratio`
    set, probability ratios count as well: p = (mix |error| + (1 - mix) |ratio - 1| + small)**alpha.

    rows: `ring.rows`, of the ring that is drawn from. alpha: 0 draws all rows equally often. beta: None gives every row
        the weight 1; otherwise weights are (N P)**-beta, N the stored rows, divided by the largest of their batch.
    initial_error, initial_ratio: of new rows while nothing was reported; afterwards they get the largest |error| and
        |ratio - 1| reported so far, so that each is drawn soon.

    `alpha` and `beta` are plain attributes that may be changed at any time. Errors are kept as they were reported; the
    tree of priorities follows them, and alpha, when rows are drawn: all that changed since, in one pass.
    """

    def __init__(
        self,
        rows: int,
        alpha: float,
        beta: float | None = None,
        initial_error: float = 1.0,
        initial_ratio: float | None = None,
        mix: float = 0.5,
        small: float = 1e-6,
    ):
        _require_settings(alpha, beta, mix, small)
        require_memory(rows * ROW_BYTES, f"Priorities of {rows:,} rows", "Lower the capacity of the replay.")
        self.alpha: float = alpha
        self.beta: float | None = beta
        self.mix: float = mix
        self.small: float = small
        self.tree: SumTree = SumTree(rows)
        self.error: np.ndarray = np.full(rows, NOT_STORED, np.float32)  # [rows] |error|, or NOT_STORED
        # [rows] |ratio - 1|
        self.deviation: np.ndarray | None = None if initial_ratio is None else np.zeros(rows, np.float32)
        # What new rows get, and whether that has been reported yet.
        self.largest: np.ndarray = np.array([initial_error, abs((initial_ratio or 0.0) - 1.0)], np.float32)
        if not np.isfinite(self.largest).all() or initial_error < 0:
            raise ConfigError(
                f"Prioritised: initial_error = {initial_error}, initial_ratio = {initial_ratio}; expected finite "
                "numbers, and an error of at least 0."
            )
        self.reported: bool = False
        self._alpha = alpha  # of the priorities in the tree
        self._changed: list[np.ndarray] = []  # rows whose priorities in the tree are out of date
        self._changes = 0  # how many they are

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present exponents."""
        self.alpha, self.beta = hyper["priority_exponent"], hyper["importance_exponent"]

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        """Flat rows [k, n] and importance weights [k, n]."""
        self.refresh()
        if not self.tree.total:
            raise ConfigError(
                f"Prioritised knows none of the {len(ring)} rows of the replay. Add steps through the buffer, so that "
                "the selector knows them."
            )
        masses = (np.arange(n) + rng.random((k, n))) * (self.tree.total / n)
        rows = self.tree.find(masses.reshape(-1)).reshape(k, n)
        if self.beta is None:
            return rows, np.ones((k, n), np.float32)
        priority = self.tree.values(rows)
        # N and the total cancel: (N P)**-beta is largest where P is smallest.
        return rows, ((priority / priority.min(1, keepdims=True)) ** -self.beta).astype(np.float32)

    def importance(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """(N P)**-beta [k, n] of rows [k, n] that were just selected; 1 where beta is None."""
        if self.beta is None:
            return np.ones(rows.shape, np.float32)
        return ((self.tree.values(rows) * (len(ring) / self.tree.total)) ** -self.beta).astype(np.float32)

    def added(self, ring: Ring, rows: Where) -> None:
        """Rows were written; older ones may have fallen off the ends of the columns. ConfigError for another ring."""
        if ring.rows != len(self.error):
            raise ConfigError(
                f"Prioritised was built for {len(self.error)} rows, but the ring has {ring.rows}; expected the same. "
                "Build it with `ring.rows`."
            )
        written, fallen = numbers(rows), ring.vacant()
        self.error[fallen] = NOT_STORED
        self.error[written] = self.largest[0]
        if self.deviation is not None:
            self.deviation[written] = self.largest[1]
        self._note(written, fallen)

    def removed(self, ring: Ring, rows: Where) -> None:
        """Rows were trimmed or cleared."""
        gone = numbers(rows)
        self.error[gone] = NOT_STORED
        self._note(gone)

    def update(self, rows: np.ndarray, errors: np.ndarray, ratios: np.ndarray | None = None) -> None:
        """Errors [k, n] and probability ratios [k, n] of rows [k, n], drawn or new. Of a row drawn twice, the last ones
        count.

        Rows that are no longer stored are passed over. NumericalError, and nothing changed, where a number is NaN or
        infinite in float32.
        """
        error = _magnitudes("errors", errors, rows)
        deviation = None
        if self.deviation is not None:
            if ratios is None:
                raise ConfigError(
                    "Prioritised was built with an initial_ratio, so it needs probability ratios, but only errors were "
                    "reported. Report both, or leave initial_ratio at None."
                )
            deviation = _magnitudes("ratios", np.asarray(ratios) - 1.0, rows)
        rows = rows.reshape(-1)
        stored = self.error.take(rows) >= 0
        if not stored.all():
            rows, error = rows[stored], error[stored]
            deviation = None if deviation is None else deviation[stored]
        if not len(rows):
            return
        largest = np.array([error.max(), 0.0 if deviation is None else deviation.max()], np.float32)
        self.largest = np.maximum(self.largest, largest) if self.reported else largest
        self.reported = True
        _put_last(self.error, rows, error)
        if self.deviation is not None and deviation is not None:
            _put_last(self.deviation, rows, deviation)
        self._note(rows)

    def refresh(self) -> None:
        """Bring the tree up to date with the errors and with alpha; `select` does so itself."""
        _require_settings(self.alpha, self.beta, self.mix, self.small)
        if self.alpha != self._alpha or 8 * self._changes > len(self.error):
            self.tree.fill(self._priority(slice(None)))
            self._alpha = self.alpha
        elif self._changed:
            rows = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
            self.tree.set(rows, self._priority(rows))
        self._changed, self._changes = [], 0

    def all_priorities(self, ring: Ring) -> np.ndarray:
        """The priorities, alpha included, of all stored rows: [rows]."""
        self.refresh()
        return self.tree.values(ring.oldest(ring.filled))

    def priorities(self, ring: Ring, column: int) -> np.ndarray:
        """The priorities, alpha included, of the stored rows of a column, the oldest first: [ring.filled[column]]."""
        self.refresh()
        counts = np.zeros_like(ring.filled)
        counts[column] = ring.filled[column]
        return self.tree.values(ring.oldest(counts))

    def state(self) -> dict[str, Any]:
        stored = np.flatnonzero(self.error >= 0)
        used = int(stored[-1]) + 1 if len(stored) else 0
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "largest": self.largest.copy(),
            "reported": self.reported,
            "error": self.error[:used].copy(),
            "deviation": None if self.deviation is None else self.deviation[:used].copy(),
        }

    def check_state(self, saved: Stored, stored: int = 0, rows: int | None = None) -> None:
        """Raise CheckpointError where this is not the state of such a selector from so many stored rows. rows: of its
        ring; None: as many as this one has."""
        rows = len(self.error) if rows is None else rows
        held = saved.fields(("alpha", "beta", "largest", "reported", "error", "deviation"))
        held["alpha"].number(0)
        if held["beta"].value is not None:
            held["beta"].number(0)
        held["largest"].array(np.float32, (2,), 0)
        held["reported"].flag()
        error = held["error"].array(np.float32, (None,), NOT_STORED)
        known, unknown = np.count_nonzero(error >= 0), np.count_nonzero(error == NOT_STORED)
        if len(error) > rows or known != stored or known + unknown != len(error):
            held["error"].refuse(f"one of each of {stored} stored rows, among {rows}")
        if self.deviation is None:
            held["deviation"].like(None)
        else:
            held["deviation"].array(np.float32, error.shape, 0)

    def moved(self, state: dict[str, Any], there: np.ndarray, here: np.ndarray) -> dict[str, Any]:
        """The state of a selector of another ring, for one whose flat rows `here` are those rows `there`."""
        error, deviation = np.full_like(self.error, NOT_STORED), state["deviation"]
        error[here] = state["error"][there]
        if deviation is not None:
            deviation = np.zeros_like(error)
            deviation[here] = state["deviation"][there]
        return {**state, "error": error, "deviation": deviation}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        used = len(state["error"])
        self.alpha, self.beta, self.reported = state["alpha"], state["beta"], bool(state["reported"])
        self.largest = np.array(state["largest"], np.float32)
        self.error[:used], self.error[used:] = state["error"], NOT_STORED
        if self.deviation is not None:
            self.deviation[:used] = state["deviation"]
        self._changes = len(self.error)  # all of the tree
        self.refresh()

    def _priority(self, rows: np.ndarray | slice) -> np.ndarray:
        """Priorities of rows, 0 where they are not stored."""
        error = self.error[rows].astype(np.float64)
        level = np.maximum(error, 0.0)
        if self.deviation is not None:
            level = self.mix * level + (1.0 - self.mix) * self.deviation[rows]
        with np.errstate(over="ignore"):
            return np.clip((level + self.small) ** self.alpha, LEAST, MOST) * (error >= 0)

    def _note(self, *rows: np.ndarray) -> None:
        self._changed += rows
        self._changes += sum(map(len, rows))
        if 8 * self._changes > len(self.error):
            self._changed = []  # then the tree is built anew


def _magnitudes(what: str, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Absolute values in float32, [k * n]."""
    values = np.asarray(values)
    if values.shape != rows.shape:
        raise ConfigError(
            f"Prioritised: {what} of shape {values.shape}; expected one number for each drawn row, {rows.shape}. "
            "Report them unreduced."
        )
    with np.errstate(over="ignore"):
        sizes = np.abs(values).astype(np.float32).reshape(-1)
    if not math.isfinite(sizes.sum(dtype=np.float64)):
        raise NumericalError(
            f"{np.count_nonzero(~np.isfinite(sizes))} of the {what} of {sizes.size} drawn rows are NaN or infinite, so "
            "they have no priority; expected finite numbers. The losses diverge: lower the learning rate, clip "
            "gradients, or scale the rewards."
        )
    return sizes


def _require_settings(alpha: float, beta: float | None, mix: float, small: float) -> None:
    numbers_ = {"alpha": alpha, "beta": 0.0 if beta is None else beta, "mix": mix, "small": small}
    wrong = [name for name, number in numbers_.items() if not (math.isfinite(number) and number >= 0)]
    if wrong or mix > 1 or small == 0:
        raise ConfigError(
            f"Prioritised: alpha = {alpha}, beta = {beta}, mix = {mix}, small = {small}; expected alpha and beta of at "
            "least 0 (or beta None), mix from 0 to 1, and small above 0."
        )
