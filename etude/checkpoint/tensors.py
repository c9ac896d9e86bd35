"""Arrays in the safetensors format (https://huggingface.co/docs/safetensors), streamed.

Members are exchangeable with files of the safetensors library. The library holds all serialised bytes of a file in
memory, which a replay of gigabytes cannot afford.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from etude.checkpoint.plain import parse

HEADER_LIMIT = 16 * 2**20  # bytes; far above what any agent needs, far below what could exhaust a machine
CHUNK = 2**20  # bytes that are hashed and written at once

_DTYPES = {
    "BOOL": np.dtype("?"), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"), "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"), "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "F64": np.dtype("<f8"),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def storable(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype can be stored: booleans, integers and floats of 16 to 64 bits."""
    return dtype.newbyteorder("<") in _NAMES


def encode(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece: neither contiguous nor other arrays are copied as a whole."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # keeps every tensor aligned to its items
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, array in ordered:
        end = position + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"{len(arrays)} arrays have too long names together; stack small arrays into larger ones")
    yield struct.pack("<Q", len(text)) + text
    for _, array in ordered:
        yield from _pieces(array)


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    if array.size == 0:
        return
    dtype = array.dtype.newbyteorder("<")
    pieces = np.nditer(  # type: ignore[call-overload]  # NumPy's stub does not know "contig"
        [array],
        ["external_loop", "buffered"],
        [["readonly", "contig"]],
        op_dtypes=[dtype],
        order="C",
        casting="equiv",
        buffersize=max(1, CHUNK // dtype.itemsize),
    )
    for piece in pieces:
        yield np.asarray(piece).view(np.uint8).data


def decode(source: Any, size: int) -> dict[str, np.ndarray]:
    """The arrays of the `size` bytes that `source` gives next, each in memory of its own and writable.

    source: has `read(size)` and `readinto(view)`, which give its bytes in order.
    Never allocates more than `size` bytes for them. Raises ValueError where the format is broken.
    """
    if size < 8:
        raise ValueError("its header is missing")
    length = struct.unpack("<Q", source.read(8))[0]
    if length > min(size - 8, HEADER_LIMIT):
        raise ValueError(f"its header claims {length} bytes")
    header = parse(source.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    header.pop("__metadata__", None)
    try:
        entries = sorted(((name, *_entry(entry)) for name, entry in header.items()), key=lambda entry: entry[3:])
        position = 0
        for name, dtype, shape, begin, end in entries:  # all of them, before anything is allocated
            if begin != position or end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(
                    f"tensor {name!r} does not follow the one before it, or its size does not fit its shape"
                )
            position = end
        if position != size - 8 - length:
            raise ValueError(f"its tensors take {position} bytes of {size - 8 - length}")
        arrays = {}
        for name, dtype, shape, _, _ in entries:
            array = np.empty(shape, dtype)
            if array.size:
                source.readinto(array.reshape(-1).view(np.uint8).data)
            arrays[name] = array
        return arrays
    except (KeyError, TypeError) as error:
        raise ValueError(f"its header is malformed: {error}") from error


def _entry(entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if any(type(n) is not int or not 0 <= n < 2**63 for n in (*shape, begin, end)):
        raise ValueError("shapes and offsets of tensors must be counts")
    return dtype, shape, begin, end
