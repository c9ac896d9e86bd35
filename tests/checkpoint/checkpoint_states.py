"""States to save, how to compare them, and what can go wrong with a file, for the tests of this folder."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

DTYPES = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


def small_state(fill: int = 1) -> dict[str, Any]:
    """A little of everything, the same size for every `fill` from 1 to 9."""
    return {
        "engine": {"weights": {"q.dense0.weight": np.full((2, 3), fill, np.float32)}, "count": fill},
        "replay": {
            "observation": np.full((4, 2), fill, np.uint8),
            "ended": np.array([True, False]),
            "rows": (fill, None),
        },
        "counters": {"step": fill, "rate": math.inf, "name": "dqn", "history": [0.5, -0.0]},
    }


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal in structure, types, dtypes, shapes and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        little = a.dtype.newbyteorder("<")
        return b.dtype == little and a.shape == b.shape and a.astype(little).tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


def litter(folder: Path) -> list[str]:
    """The names in a folder that are not complete checkpoints."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".etude")


class FullDisk:
    """A file on a disk that has room for `room` more bytes: takes what fits, then fails as the system does."""

    def __init__(self, file: BinaryIO, room: int, error: int):
        self._file, self._room, self._error = file, room, error

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._file.write(data[: self._room])
        if len(data) > self._room:
            raise OSError(self._error, os.strerror(self._error))
        self._room -= len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
