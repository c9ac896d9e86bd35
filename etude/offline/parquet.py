"""Arrays by name in a Parquet table: one column for each, rows of several numbers as lists.

In shards, a row of `next_observations` is an empty list where the next row holds that observation: only the final
observation of an episode is stored twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import DataError, needing
from etude.base.spaces import Spaces
from etude.offline import layout
from etude.offline.blocks import EpisodeBlock
from etude.offline.layout import BLOCK

_DEEPEST = 32
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_WHOLE = (_I16, _I32, _I64)
_FIXED = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
# Number and type of a field of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _METADATA, _NUM_VALUES = (4, _LIST), (1, _LIST), (3, _STRUCT), (5, _I64)


def num_values(footer: bytes) -> int:
    """How many values all columns of all row groups have. ValueError where the footer is damaged."""
    reader = _Reader(footer)
    try:
        return sum(
            abs(reader.whole())
            for _ in reader.fields(_ROW_GROUPS)
            for _ in reader.items()
            for _ in reader.fields(_COLUMNS)
            for _ in reader.items()
            for _ in reader.fields(_METADATA)
            for _ in reader.fields(_NUM_VALUES)
        )
    except IndexError:
        raise ValueError("the footer is cut off") from None


class _Reader:
    """Walks through structures from the first byte to the last."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    def whole(self) -> int:
        """A whole number: zigzag, seven bits a byte."""
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def fields(self, wanted: tuple[int, int]) -> Iterator[None]:
        """Walk through a structure; stops at the field that is wanted, for the caller to read."""
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else self.whole()
            if (number, header & 15) == wanted:
                yield
            else:
                self._skip(header & 15, 0)

    def items(self) -> Iterator[None]:
        """Walk through a list of structures; the caller reads each."""
        size, kind = self._list()
        if kind != _STRUCT:
            raise ValueError("a list of the footer holds something else than it should")
        for _ in range(size):
            yield

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number in the footer is too long")

    def _list(self) -> tuple[int, int]:
        header = self._byte()
        return self._checked(self._varint() if header >> 4 == 15 else header >> 4), header & 15

    def _checked(self, size: int) -> int:
        if size > len(self._data) - self._place:
            raise ValueError("the footer is cut off")
        return size

    def _skip(self, kind: int, depth: int, in_list: bool = False) -> None:
        if depth > _DEEPEST:
            raise ValueError("the footer is nested too deeply")
        if kind in (_TRUE, _FALSE):
            self._place += in_list
        elif kind in _WHOLE:
            self._varint()
        elif kind in _FIXED:
            self._place += _FIXED[kind]
        elif kind == _BINARY:
            size = self._checked(self._varint())
            self._place += size
        elif kind in (_LIST, _SET):
            size, inner = self._list()
            for _ in range(size):
                self._skip(inner, depth + 1, in_list=True)
        elif kind == _MAP:
            size = self._checked(self._varint())
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, depth + 1, in_list=True)
                self._skip(kinds & 15, depth + 1, in_list=True)
        elif kind == _STRUCT:
            while header := self._byte():
                if not header >> 4:
                    self.whole()
                self._skip(header & 15, depth + 1)
        else:
            raise ValueError(f"a field of the footer has the unknown type {kind}")


WIDEST = 8  # bytes of a number
FOOTER = 75  # bytes about each column of a row group, about


def write(path: Path, arrays: dict[str, np.ndarray], about: str) -> None:
    """Write arrays [M, ...]; more than one axis is flattened, and the spaces tell the shape. about: text about the
    file."""
    pyarrow, pq = library()
    table = pyarrow.table({name: _to_arrow(pyarrow, values) for name, values in arrays.items()})
    pq.write_table(table.replace_schema_metadata({"etude": about}), path, compression="zstd", write_page_checksum=True)


class ParquetShard:
    """A table that is written block by block, each a row group."""

    COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")

    def __init__(self, path: Path, spaces: Spaces, compression: str, about: dict[str, Any]):
        self._pyarrow, self._pq = library()
        self._spaces, self._compression = spaces, compression
        self._file = self._pyarrow.OSFile(str(path), "wb")
        self._writer: Any = None
        self._chunks = 0  # columns of row groups

    @property
    def size(self) -> int:
        """Bytes so far, with those of the footer."""
        return self._file.tell() + self._chunks * FOOTER

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes."""
        arrays = layout.to_arrays(block.columns(following=False), self._spaces, exact=True)
        arrays |= layout.text_arrays(block.final_observation, block.last, len(block.reward), self._spaces)
        columns = {name: _to_arrow(self._pyarrow, values) for name, values in arrays.items()}
        for name, values in layout.observation_arrays(block.final_observation, self._spaces, layout.NEXT).items():
            # A column of lists, empty but for these rows
            width = values[0].size
            offsets = np.zeros(block.last[-1] + 2, np.int32)
            offsets[block.last + 1] = width
            columns[name] = self._pyarrow.ListArray.from_arrays(
                np.cumsum(offsets, dtype=np.int32), self._pyarrow.array(values.reshape(-1))
            )
        for name, numbers in (("environment", block.environment), ("episode", block.number)):
            columns[f"metadata/{name}"] = self._pyarrow.array(np.repeat(numbers, block.lengths))
        table = self._pyarrow.table(columns)
        if self._writer is None:
            options = {"compression": self._compression, "write_page_checksum": True, "write_statistics": False}
            # The columns with few different values, which a dictionary makes small: those of bytes
            self._writer = self._pq.ParquetWriter(
                self._file,
                table.schema,
                use_dictionary=[
                    name for name, values in arrays.items() if values.dtype.itemsize == 1 and values.dtype != bool
                ],
                **options,
            )
        self._writer.write_table(table, row_group_size=len(table))
        self._chunks += table.num_columns

    def close(self, about: dict[str, Any]) -> None:
        """Complete the table. about: all that is known of it."""
        if self._writer is not None:
            self._writer.add_key_value_metadata({"etude": json.dumps(about)})
            self._writer.close()
        self._file.close()


def read(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """(arrays [M] or [M, n] by name, the text about the file or None). Raises DataError where it is damaged."""
    pyarrow, _ = library()
    with _opened(path) as file:
        wanted, claimed = _columns(pyarrow, file, path)
        layout.require_memory(path, claimed)
        return arrays_of(pyarrow, file.read(wanted), path), _text(file)


def about(path: Path) -> str | None:
    """The text about the file; None where there is none. Raises DataError where it is damaged."""
    with _opened(path) as file:
        num_values(_footer(path))
        return _text(file)


def stream(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """What `read` returns, some rows at a time. Raises DataError where it is damaged."""
    pyarrow, _ = library()
    with _opened(path) as file:
        wanted, claimed = _columns(pyarrow, file, path)
        rows = max(1, BLOCK * file.metadata.num_rows // max(1, claimed))
        rest: list[Any] = []  # rows at the end whose next observation is in the next batch
        for batch in file.iter_batches(rows, columns=wanted):
            table = pyarrow.concat_tables([*rest, pyarrow.Table.from_batches([batch])])
            whole = _rows_with_next(pyarrow, table)
            rest = [table.slice(whole)] if whole < len(table) else []
            if whole:
                yield arrays_of(pyarrow, table.slice(0, whole), path)
        if rest:
            yield arrays_of(pyarrow, rest[0], path)


def _rows_with_next(pyarrow: Any, table: Any) -> int:
    """How many rows there are up to the last that holds a next observation."""
    kinds = pyarrow.types
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if name.startswith(layout.NEXT) and (kinds.is_list(kind) or kinds.is_large_list(kind)):
            lengths = pyarrow.compute.list_value_length(table.column(name)).to_numpy(zero_copy_only=False)
            return int(np.flatnonzero(lengths)[-1:].sum()) + 1 if lengths.any() else 0
    return len(table)


def arrays_of(pyarrow: Any, table: Any, path: Any) -> dict[str, np.ndarray]:
    """The columns of a table as arrays; those without numbers are passed over. path: of the file, for messages."""
    if not table.num_rows:
        raise DataError(f"{path}: it has no rows. Give data of at least one step.")
    kinds = pyarrow.types
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if not _is_numeric(kinds, kind):
            layout.pass_over(name, f"the type {kind}", path)
            table = table.drop_columns([name])
    # Arrays whose empty rows of next observations are the observations of the next row
    arrays = {name: _from_arrow(pyarrow, table.column(name), name, path) for name in table.column_names}
    for name, held in arrays.items():
        if not isinstance(held, _Sparse):
            continue
        own = arrays.get(layout.OBSERVATIONS + name.removeprefix(layout.NEXT))
        if not isinstance(own, np.ndarray) or own[0].size != held.values.shape[1] or not held.lengths[-1]:
            raise DataError(
                f"{path}: column {name!r} has empty rows that no observation of a next row fills. Record it again."
            )
        own = own.reshape(len(own), -1)
        found = np.empty_like(own)
        found[:-1] = own[1:]
        found[held.lengths > 0] = held.values
        arrays[name] = found
    return arrays


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A Parquet file to read; DataError for what is wrong with it."""
    pyarrow, pq = library()
    opening = layout.reading(path, "Parquet", pyarrow.ArrowException)
    with opening, pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield file


def _text(file: Any) -> str | None:
    held = (file.metadata.metadata or {}).get(b"etude")
    return None if held is None else held.decode()


def _columns(pyarrow: Any, file: Any, path: Path) -> tuple[list[str] | None, int]:
    """Which columns to read (None: all), and how many bytes they take. DataError for any of other things than numbers,
    or rows of so many, and for more than is stored."""
    about, schema, kinds = file.metadata, file.schema_arrow, pyarrow.types
    fixed = 0
    wanted = [name for name in schema.names if not name.startswith(layout.LEFT_ALONE)]
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in wanted:
            continue
        if not _is_numeric(kinds, kind):
            layout.pass_over(name, f"the type {kind}", path)
            wanted.remove(name)
            continue
        size = about.num_rows * WIDEST
        while _is_list(kinds, kind):
            size, kind = size * (kind.list_size if kinds.is_fixed_size_list(kind) else 1), kind.value_type
        fixed += size
    claimed = num_values(_footer(path)) * WIDEST
    layout.require_stored(path, "any", max(claimed, fixed), path.stat().st_size)
    return None if len(wanted) == len(schema.names) else wanted, max(claimed, fixed)


def _footer(path: Path) -> bytes:
    """The metadata before the last eight bytes, which are their size and `PAR1`."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, os.SEEK_END)
        return file.read(size)


def _is_numeric(kinds: Any, kind: Any) -> bool:
    inner = kind
    while _is_list(kinds, inner):
        inner = inner.value_type
    return kinds.is_boolean(inner) or kinds.is_integer(inner) or kinds.is_floating(inner)


def _is_list(kinds: Any, kind: Any) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


class _Sparse(NamedTuple):
    """Rows of which some are empty."""

    lengths: np.ndarray  # [M]
    values: np.ndarray  # [rows that are not empty, n]


def _to_arrow(pyarrow: Any, values: np.ndarray) -> Any:
    flat = pyarrow.array(values.reshape(-1))
    return flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values[0].size)


def _from_arrow(pyarrow: Any, column: Any, name: str, path: Path) -> Any:
    """A column as an array; one of next observations with empty rows as `_Sparse`."""
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise DataError(f"{path}: column {name!r}, row {row}: there is no value. Repair the row.")
    kinds = pyarrow.types
    column = column.combine_chunks()
    rows = len(column)
    if not _is_list(kinds, column.type):
        return column.to_numpy(zero_copy_only=False)
    lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    width = lengths.max(initial=0)
    sparse = name.startswith(layout.NEXT) and width > 0 and not lengths.all()
    odd = (lengths != width) & (lengths != 0) if sparse else lengths != lengths[:1]
    if odd.any():
        row = int(np.argmax(odd))
        raise DataError(
            f"{path}: column {name!r}, row {row}: {lengths[row]} numbers, and {width if sparse else lengths[0]} in "
            f"row {int(np.argmax(lengths)) if sparse else 0}; expected as many in every row."
        )
    flat = column.flatten()
    if flat.null_count:
        row = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // int(width)
        raise DataError(f"{path}: column {name!r}, row {row}: a number is missing. Repair the row.")
    if _is_list(kinds, flat.type):  # more than one axis, as other programs have it
        inner = _from_arrow(pyarrow, pyarrow.chunked_array([flat]), name, path)
        return inner.reshape(rows, -1)
    values = flat.to_numpy(zero_copy_only=False)
    return _Sparse(lengths, values.reshape(-1, width)) if sparse else values.reshape(rows, -1)


def library() -> tuple[Any, Any]:
    with needing("Reading and writing Parquet files", "offline"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet as pq
    return pyarrow, pq
