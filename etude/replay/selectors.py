"""Which rows of a ring make up the batches.

`adjust(hyper)` takes over hyperparameters. `select(ring, k, n, rng)` returns flat rows [k, n] and importance weights
[k, n], `importance(ring, rows)` their weights before they are divided by the largest of a batch. `added(ring, rows)`
reports the rows just written (`ring.vacant()` then lists those that were overwritten); `removed(ring, rows)` those that
were trimmed or cleared; `update(rows, errors, ratios)` the errors, and probability ratios, [k, n] of sampled rows. The
selectors here ignore these reports; `prioritised` uses them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.replay.observations import Where
from etude.replay.ring import Ring
from etude.replay.ring_view import Stateless

Selection = tuple[np.ndarray, np.ndarray]  # rows [k, n] int64, weights [k, n] float32


class Unprioritised(Stateless):
    """A selector that ignores which rows were added, removed and updated."""

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def importance(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """All rows count the same."""
        return np.ones(rows.shape, np.float32)

    def added(self, ring: Ring, rows: Where) -> None: ...

    def removed(self, ring: Ring, rows: Where) -> None: ...

    def update(self, rows: np.ndarray, errors: np.ndarray, ratios: np.ndarray | None = None) -> None: ...

    def check_state(self, saved: Stored, stored: int = 0) -> None:
        saved.fields(())


class Uniform(Unprioritised):
    """Every stored row with the same probability, with replacement."""

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        return ring.locate(rng.integers(0, len(ring), (k, n))), np.ones((k, n), np.float32)


class BestEpisodes(Unprioritised):
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


class Passes(Unprioritised):
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


class Epochs(Unprioritised):
    """Shuffled passes over all rows, for on-policy learning. Each pass is a new permutation, cut into `len(ring) // n`
    batches; the few rows that would make a smaller last one sit out that pass. ConfigError if there are fewer."""

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection:
        if len(ring) < n:
            raise ConfigError(
                f"A batch of {n} was asked for, but the rollout holds {len(ring)} steps; expected a batch that is "
                "no larger. Lower the minibatch size or collect more steps."
            )
        return ring.locate(_shuffled_passes(len(ring), k, n, rng)), np.ones((k, n), np.float32)


class ColumnEpochs(Unprioritised):
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
