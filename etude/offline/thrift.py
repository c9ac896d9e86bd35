"""How many values a Parquet file claims, from its footer. Where a column's metadata are damaged, pyarrow ends the whole
process when it is asked for them.

The footer is a FileMetaData of Parquet's `parquet.thrift`, in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator

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
