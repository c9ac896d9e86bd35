"""Arrays by name in a Parquet table: one column for each, rows of several numbers as lists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import DataError, MissingExtra
from etude.offline.limits import LEFT_ALONE, require_memory, require_stored
from etude.offline.thrift import num_values

WIDEST = 8  # bytes of a number


def write(path: Path, arrays: dict[str, np.ndarray], about: str) -> None:
    """Write arrays [M, ...]; more than one axis is flattened, and the spaces tell the shape. about: text about the
    file."""
    pyarrow, pq = _pyarrow()
    table = pyarrow.table({name: _to_arrow(pyarrow, values) for name, values in arrays.items()})
    pq.write_table(table.replace_schema_metadata({"etude": about}), path, compression="zstd", write_page_checksum=True)


def read(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """(arrays [M] or [M, n] by name, the text about the file or None). Raises DataError where it is damaged."""
    pyarrow, pq = _pyarrow()
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(_columns(pyarrow, file, path))
        about = (table.schema.metadata or {}).get(b"etude")
        arrays = {name: _from_arrow(pyarrow, table.column(name), name, path) for name in table.column_names}
        return arrays, None if about is None else about.decode()
    except DataError:
        raise
    except (OSError, LookupError, MemoryError, OverflowError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path}: it is no Parquet file, or is incomplete ({error}). Record or download it again."
        ) from None


def _columns(pyarrow: Any, file: Any, path: Path) -> list[str] | None:
    """Which columns to read; None for all. DataError for any of other things than numbers, or rows of so many, and for
    more than is stored."""
    about, schema, kinds = file.metadata, file.schema_arrow, pyarrow.types
    fixed = 0
    wanted = [name for name in schema.names if not name.startswith(LEFT_ALONE)]
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in wanted:
            continue
        inner = kind.value_type if _is_list(kinds, kind) else kind
        if not (kinds.is_boolean(inner) or kinds.is_integer(inner) or kinds.is_floating(inner)):
            raise DataError(
                f"{path}: column {name!r} has the type {kind}; expected numbers, or rows of as many numbers each. "
                "Remove the column."
            )
        fixed += about.num_rows * (kind.list_size if kinds.is_fixed_size_list(kind) else 1) * WIDEST
    claimed = num_values(_footer(path)) * WIDEST
    require_stored(path, "any", max(claimed, fixed), path.stat().st_size)
    require_memory(path, max(claimed, fixed))
    return None if len(wanted) == len(schema.names) else wanted


def _footer(path: Path) -> bytes:
    """The metadata before the last eight bytes, which are their size and `PAR1`."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, os.SEEK_END)
        return file.read(size)


def _is_list(kinds: Any, kind: Any) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


def _to_arrow(pyarrow: Any, values: np.ndarray) -> Any:
    flat = pyarrow.array(values.reshape(-1))
    return flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values[0].size)


def _from_arrow(pyarrow: Any, column: Any, name: str, path: Path) -> np.ndarray:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise DataError(f"{path}: column {name!r}, row {row}: there is no value. Repair the row.")
    kinds = pyarrow.types
    column = column.combine_chunks()
    rows = len(column)
    if not _is_list(kinds, column.type):
        return column.to_numpy(zero_copy_only=False)
    lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    if (lengths != lengths[:1]).any():
        row = int(np.argmax(lengths != lengths[0]))
        raise DataError(
            f"{path}: column {name!r}, row {row}: {lengths[row]} numbers, and {lengths[0]} in row 0; expected as many "
            "in every row."
        )
    flat = column.flatten()
    if flat.null_count:
        row = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // int(lengths[0])
        raise DataError(f"{path}: column {name!r}, row {row}: a number is missing. Repair the row.")
    return flat.to_numpy(zero_copy_only=False).reshape(rows, -1)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("Reading and writing Parquet files", "offline") from None
    return pyarrow, pq
