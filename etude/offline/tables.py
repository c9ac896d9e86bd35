"""Tables that are no files of episodes yet: CSV, and those that other libraries have in memory, through Arrow; and what
recordings of other programs call columns and leave unsaid."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError, DataError
from etude.offline.layout import NEXT, OBSERVATIONS, Arrays, require_memory, require_regular, rows_of
from etude.offline.parquet import arrays_of, library

COMMAS = "values separated by commas, and 0.5 for 0,5"
WIDEST = 8  # bytes of a number in memory, which may be a single digit in a file


@runtime_checkable
class ArrowTable(Protocol):
    """A table in memory: a frame of pandas or polars, or a pyarrow.Table."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


@runtime_checkable
class FormattedDataset(Protocol):
    """A Dataset of Hugging Face's datasets."""

    def with_format(self, type: str) -> Any: ...


def read(path: Path) -> tuple[Arrays, None]:
    """The columns of a CSV file, whose first row names them."""
    pyarrow, _ = library()
    require_regular(path)
    require_memory(path, WIDEST * path.stat().st_size)
    try:
        from pyarrow import csv

        table = csv.read_csv(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: it is no CSV file ({error}). Expected names in its first row, {COMMAS}.") from None
    if table.num_columns == 1 and ";" in (name := table.column_names[0]):
        raise DataError(f"{path}: it has one column, {name!r}; expected {COMMAS}.")
    return arrays_of(pyarrow, table, path), None


def about(path: Path) -> None:
    """A CSV file does not say its spaces."""


def stream(path: Path) -> Any:
    """What `read` returns, at once."""
    yield read(path)[0]


def in_memory(table: ArrowTable | FormattedDataset) -> Arrays:
    """The columns of a table in memory."""
    pyarrow, _ = library()
    try:
        found = pyarrow.table(table.with_format("arrow")[:] if isinstance(table, FormattedDataset) else table)
    except (TypeError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"The {type(table).__name__} cannot be read as a table: {error}") from None
    return arrays_of(pyarrow, found, type(table).__name__)


def renamed(arrays: Arrays, columns: Mapping[str, str], file: str) -> Arrays:
    """Arrays by the names that they have in etude's files. columns: from the names that they have; several that become
    one are its numbers, in this order."""
    if unknown := [name for name in columns if name not in arrays]:
        raise DataError(f"{file}: columns= names {unknown[0]!r}; it has {', '.join(sorted(arrays)) or 'no columns'}.")
    found = {name: values for name, values in arrays.items() if name not in columns}
    for own in dict.fromkeys(columns.values()):
        parts = [arrays[name] for name in columns if columns[name] == own]
        if own in found:
            raise ConfigError(f"columns= makes a column {own!r}, and {file} has one. Give that another name, too.")
        found[own] = parts[0] if len(parts) == 1 else np.concatenate([x.reshape(len(x), -1) for x in parts], 1)
    return found


def with_ends(arrays: Arrays, ends: Any, most: int | None, file: str) -> Arrays:
    """Arrays with the column `timeouts`, where they lack it.

    ends: the name of a column, or the numbers [M]: flags, 1 where episodes end, or the numbers of episodes. most: steps
        that an episode takes at most; with 1, each row is an episode, which terminates where there are no `terminals`.
    """
    if most is not None:
        checks.whole_number("max_episode_steps", most)
    if "timeouts" in arrays or "rewards" not in arrays:
        if ends is not None or most is not None:
            raise ConfigError(f"{file} has its own 'timeouts'. Leave episode_ends= and max_episode_steps= out.")
        return arrays
    rows = rows_of(arrays, file)
    if most == 1 and "terminals" not in arrays:
        return {**arrays, "terminals": np.ones(rows, bool), "timeouts": np.zeros(rows, bool)}
    if "terminals" not in arrays:
        return arrays
    terminal, arrays = arrays["terminals"].reshape(rows, -1)[:, 0] != 0, dict(arrays)
    if ends is not None:
        flags, how = _flags(arrays.pop(ends) if isinstance(ends, str) and ends in arrays else ends, rows, file), ""
    elif pairs := [(here.reshape(rows, -1), after.reshape(rows, -1)) for name, after in arrays.items()
                   if name.startswith(NEXT) and (here := arrays.get(OBSERVATIONS + name.removeprefix(NEXT))) is not None
                   and here.size == after.size]:  # fmt: skip
        flags, how = np.zeros(rows, bool), "where next_observations are not those of the next row"
        for here, after in pairs:
            flags[:-1] |= (here[1:] != after[:-1]).any(1)
    elif most is not None:
        flags, how = np.zeros(rows, bool), f"after {most:,} steps"
    else:
        raise DataError(
            f"{file}: column 'timeouts' is missing, and there are no next_observations that tell where episodes end. "
            "Give etude.offline.read max_episode_steps=1000, or episode_ends= (flags, or the column that has them)."
        )
    flags &= ~terminal
    if most is not None:
        # Let episodes end after so many steps
        start = 0
        for end in [*np.flatnonzero(flags | terminal).tolist(), len(flags)]:
            flags[start + most - 1 : end : most] = True
            start = end + 1
    if how:
        warnings.warn(
            f"{file}: column 'timeouts' is missing. {int(flags.sum()):,} episodes end {how}, and "
            f"{int(terminal.sum()):,} where they terminate.",
            stacklevel=3,
        )
    return {**arrays, "timeouts": flags}


def _flags(given: Any, rows: int, file: str) -> np.ndarray:
    flags = np.asarray(given)
    if flags.shape != (rows,) or flags.dtype.kind not in "biuf":
        raise ConfigError(
            f"episode_ends = {given!r:.100}; expected the name of a column of {file}, or {rows} flags, 1 in the last "
            "row of each episode, or numbers of episodes."
        )
    if np.isin(flags, (0, 1)).all():
        return flags != 0
    return np.append(flags[1:] != flags[:-1], False)
