"""Episodes as lines of JSON, for people and for `jq`: the first line describes the file, the last one counts what it
holds, each of the others is one episode.

    {"etude": {"version": 1, "observation_space": ..., "dtypes": {"observations": "float32", ...}}}
    {"environment": 0, "episode": 3, "terminated": true, "truncated": false, "observations": [...], "rewards": [...]}
    {"etude": {"episodes": 1, "transitions": 20}}

Columns have the names of the other formats and a row for each step; `observations` has one more, the final one, and
there are no `next_observations`; `text` is that of an episode of tokens. NaN and infinity are null. `.jsonl.gz` files
are compressed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from etude.base.errors import DataError
from etude.base.spaces import Spaces
from etude.offline.blocks import EpisodeBlock
from etude.offline.layout import SLACK, TEXT, Arrays, by_episode, from_episode, require_memory, require_regular

FACTS = ("environment", "episode", "terminated", "truncated")  # what a line holds beside columns
TAIL = 2**16  # bytes at the end of a file that hold its last line
LONGEST = 2**28  # bytes of a line
EXPANSION = 16  # bytes in memory for each byte of JSON, at most: pointers to the numbers of a list
DENSEST = 200  # bytes of JSON for each byte of a compressed file, at most
DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64")


class JsonLinesShard:
    """A file that is written line by line. about: what is known of it before."""

    COMPRESSIONS = ("none", "gzip")

    def __init__(self, path: Path, spaces: Spaces, compression: str, about: dict[str, Any]):
        self._spaces, self._about, self._packed = spaces, about, compression == "gzip"
        self._file = path.open("wb")
        self._begun = False

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes."""
        lines = []
        for i, arrays in enumerate(by_episode(block, self._spaces)):
            text = {"text": arrays.pop(TEXT)[-1]} if TEXT in arrays else {}
            if not self._begun:
                dtypes = {name: values.dtype.name for name, values in arrays.items()}
                lines.append({"etude": _plain({**self._about, "dtypes": dtypes})})
                self._begun = True
            facts = zip(FACTS, (block.environment, block.number, block.terminated, block.truncated), strict=True)
            line = {name: values[i].item() for name, values in facts}
            lines.append(line | text | {name: _numbers(values) for name, values in arrays.items()})
        self._write(lines)

    def close(self, about: dict[str, Any]) -> None:
        """Complete the file. about: all that is known of it."""
        counts = ("episodes", "transitions")
        changed = {name: value for name, value in about.items() if name in counts or self._about.get(name) != value}
        self._write([{"etude": _plain(changed)}])
        self._file.close()

    def _write(self, lines: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines).encode()
        self._file.write(gzip.compress(data, 6, mtime=0) if self._packed else data)


def about(path: Path) -> str | None:
    """The text about the file. Raises DataError where it is damaged or incomplete."""
    with _opened(path) as file:
        first, last = _header(file.readline(LONGEST), path), b""
        if path.suffix == ".gz":
            for line in _lines(file, path):
                last = line
        else:
            file.seek(max(file.tell() - 1, path.stat().st_size - TAIL))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        return json.dumps(first | _trailer(last, path))


def stream(path: Path) -> Iterator[Arrays]:
    """The columns of each episode. Raises DataError with the line of what is damaged."""
    with _opened(path) as file:
        dtypes = _header(file.readline(LONGEST), path).get("dtypes")
        dtypes = dtypes if isinstance(dtypes, dict) else {}
        number, line = 1, b""
        for number, line in enumerate(_lines(file, path), 2):
            if line.startswith(b'{"etude"'):
                break
            yield _episode(line, dtypes, f"{path}, line {number}")
        _trailer(line, path)


def _lines(file: Any, path: Path) -> Iterator[bytes]:
    left = DENSEST * path.stat().st_size + SLACK if path.suffix == ".gz" else None
    while line := file.readline(LONGEST if left is None else min(LONGEST, left + 1)):
        if left is not None:
            left -= len(line)
            if left < 0:
                raise DataError(
                    f"{path}: it expands to more than {DENSEST} times its size, which no recording does. Record it "
                    "again, or decompress it."
                )
        if not line.endswith(b"\n") and len(line) == LONGEST:
            raise DataError(f"{path}: a line is longer than {LONGEST:,} bytes. Record such episodes in Parquet.")
        require_memory(path, EXPANSION * len(line))
        yield line


def _header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        found = _parsed(line)["etude"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError(
            f'{path}: its first line does not describe the file, as etude\'s do: {{"etude": ...}}. Record it again; '
            "files of RLlib end in .json."
        )
    return found


def _trailer(line: bytes, path: Path) -> dict[str, Any]:
    """The last line of a complete file."""
    try:
        found = _parsed(line)["etude"]
        assert isinstance(found, dict) and "transitions" in found
    except (ValueError, KeyError, TypeError, RecursionError, AssertionError):
        raise DataError(
            f"{path}: it is incomplete: its last line does not count what it holds. Record or download it again."
        ) from None
    return found


def _episode(line: bytes, dtypes: dict[str, Any], where: str) -> Arrays:
    name = ""
    try:
        held = _parsed(line)
        terminated = held["terminated"]
        if not isinstance(terminated, bool):
            raise ValueError(f"'terminated' is {terminated!r:.100}; expected true or false")
        arrays = {}
        for name, value in held.items():
            if name not in FACTS and not (name == "text" and isinstance(value, str)):
                arrays[name] = _array(value, dtypes.get(name))
        return from_episode(arrays, terminated)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{where}: it is no episode, or is damaged{name and f', at column {name!r}'} ({text[:200]}). Remove the "
            "line, or record it again."
        ) from None


def _array(value: Any, dtype: Any) -> np.ndarray:
    """A list as an array, of this dtype where that changes no number; null is NaN."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"its dtype is {dtype!r:.100}")
    kind = None if dtype is None else np.dtype(dtype).kind
    found = np.array(value, np.float64) if kind == "f" else np.array(value)
    if found.ndim == 0 or found.dtype.kind not in "biuf":
        raise ValueError("it is no list of numbers, of as many in each row")
    if kind == "f" or found.dtype.kind == kind == "b":
        with np.errstate(over="ignore"):
            return found.astype(dtype)
    if kind is not None and kind in "iu" and found.dtype.kind in "iu":
        cast = found.astype(dtype)
        if (cast != found).any():
            raise ValueError(f"a number is outside of {dtype}")
        return cast
    return found


def _parsed(line: bytes) -> Any:
    return json.loads(line, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _plain(value: Any) -> Any:
    """With texts for infinite numbers, such as bounds of spaces, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(values: np.ndarray) -> list[Any]:
    """As lists, with None for what is not finite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        numbers = values.astype(object)
        numbers[~np.isfinite(values)] = None
        return numbers.tolist()
    return values.tolist()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require_regular(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except DataError:
        raise
    except (OSError, EOFError, MemoryError, zlib.error) as error:
        raise DataError(
            f"{path}: it cannot be read, or is incomplete ({error}). Record or download it again."
        ) from None
