"""The rows of a saved ring in one of another capacity, or for another number of environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import CheckpointError, ConfigError
from etude.replay.ring import TERMINATED, TRUNCATED, Ring

PORTION = 4096  # rows that are copied at once


def ring_as_saved(ring: Ring, saved: Stored) -> Ring:
    """A ring like this one, with the capacity and the number of environments that are saved; the ring itself where they
    are its own. CheckpointError where the two differ in more."""
    if not isinstance(saved.value, dict) or not isinstance(saved.value.get("built"), dict):
        return ring  # which says what is wrong
    built, own = saved.table()["built"].table(), ring.built()
    shape = ("capacity", "environments")
    if not set(shape) <= built.keys() or all(built[name].value == own[name] for name in shape):
        return ring
    environments = built["environments"].whole(1)
    extras = {name: (array.shape[1:], array.dtype) for name, array in ring.extras.items()}
    try:
        return Ring(
            ring.spaces,
            built["capacity"].whole(environments),
            environments,
            extras,
            ring.frame_stack,
            ring.reward.shape[1:],
        )
    except ConfigError as error:
        raise CheckpointError(f"The saved replay is of another size, and to copy it takes memory: {error}") from error


def copy_rows(old: Ring, new: Ring) -> tuple[np.ndarray, np.ndarray]:
    """Fill an empty ring with the newest rows of another one that it has room for: (rows there, rows here), flat.

    Columns go on where both rings have as many. Else episodes are dealt out, the oldest first, to the column with the
    fewest rows; those that are open end where they are, as truncations, and so do those that fill a column, whose other
    rows begin the next one.
    """
    columns = [old.oldest(np.where(np.arange(old.environments) == c, old.filled, 0)) for c in range(old.environments)]
    there, here, cuts = [], [], np.zeros(0, np.int64)
    if old.environments != new.environments:
        columns, cuts = _dealt_out(old, columns, new.environments, new.limit)
    for column, rows in enumerate(columns):
        rows = rows[-new.limit :]
        for start in range(0, len(rows), PORTION):
            part = rows[start : start + PORTION]
            written = new.add(_steps(old, part, column, np.isin(part, cuts)))
            there.append(part)
            here.append(np.arange(written.start, written.stop) if isinstance(written, slice) else written)
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *there]), np.concatenate([nothing, *here])


def _dealt_out(old: Ring, columns: list[np.ndarray], count: int, limit: int) -> tuple[list[np.ndarray], np.ndarray]:
    """(the rows of so many columns of at most `limit`, from those of the columns of another ring; the last row of each
    episode or part of one)."""
    ages = np.concatenate([np.arange(len(rows), 0, -1) for rows in columns])
    newest = np.zeros(len(ages), bool)
    newest[np.argsort(ages, kind="stable")[: count * limit]] = True
    starts = np.cumsum([len(rows) for rows in columns])[:-1]
    pieces = []
    for rows in (rows[kept] for rows, kept in zip(columns, np.split(newest, starts), strict=True)):
        ends = np.flatnonzero(old.kind[rows[:-1]]) + 1
        pieces += [(len(rows) - start, piece) for start, piece in zip([0, *ends], np.split(rows, ends), strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in range(count)]
    sizes = np.zeros(count, np.int64)
    for _, left in sorted(pieces, key=lambda each: -each[0]):
        while len(left):
            column = int(sizes.argmin())
            part, left = np.split(left, [limit - sizes[column]])
            found[column].append(part)
            sizes[column] += len(part)
    nothing = np.zeros(0, np.int64)
    return [np.concatenate([nothing, *parts]) for parts in found], np.array([own[-1] for each in found for own in each])


def _steps(old: Ring, rows: np.ndarray, column: int, cut: np.ndarray) -> Steps:
    """Rows [T] of a ring as steps of one environment. cut: [T] which of them end there, if not otherwise."""
    reward, kind = old.outcome(rows)
    truncated = (kind & TRUNCATED != 0) | ((kind == 0) & cut)
    ended = np.flatnonzero((kind & TERMINATED != 0) | truncated)
    observation, following = old.pair(rows)
    extras: dict[str, Any] = {name: array[:, None] for name, array in old.stored(rows).items()}
    return Steps(
        observation=trees.map(lambda leaf: leaf[:, None], observation),
        action=old.actions(rows)[:, None],
        reward=reward[:, None],
        terminated=(kind & TERMINATED != 0)[:, None],
        truncated=truncated[:, None],
        next_observation=old.observation(old.ahead(rows[-1:])),
        final_observation=trees.rows(following, ended),
        final_index=np.stack([ended, np.zeros_like(ended)], 1),
        columns=np.array([column]),
        restarted=np.zeros(1, bool),
        extras=extras,
    )
