"""Arrays by name in an HDF5 file."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import DataError, needing
from etude.base.spaces import Spaces
from etude.offline.blocks import EpisodeBlock
from etude.offline.layout import BLOCK, LEFT_ALONE, TEXT, pass_over, reading, require_memory, require_stored, to_arrays

MOST_ITEMS, DEEPEST = 1000, 16
CHUNK = 2**18  # bytes of a chunk of all columns of a shard, before compression
SHARE = 64  # of a small shard: its last chunk may be nearly empty


def write(path: Path, arrays: dict[str, np.ndarray], about: str) -> None:
    """Write arrays, compressed; `/` in a name makes a group. about: text about the file."""
    with library().File(path, "w", libver="v110") as file:  # the first that has checksums of what is not numbers
        file.attrs["etude"] = about
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", compression_opts=1, shuffle=True)


class Hdf5Shard:
    """A file that is written block by block, its data sets growing. size: bytes that it is to have."""

    COMPRESSIONS = ("gzip", "lzf", "none")

    def __init__(self, path: Path, spaces: Spaces, compression: str, about: dict[str, Any], size: int):
        self._spaces, self._path, self._chunk = spaces, path, min(CHUNK, size // SHARE)
        self._filter = {} if compression == "none" else {"compression": compression, "shuffle": True}
        if compression == "gzip":
            self._filter["compression_opts"] = 1
        self._file = library().File(path, "w", libver="v110")
        self._rows = self._written = 0  # rows of a chunk; rows in the file
        self._waiting: list[dict[str, np.ndarray]] = []

    @property
    def size(self) -> int:
        """Bytes so far, with about those of rows that wait to fill a chunk."""
        self._file.flush()
        size, waiting = self._path.stat().st_size, sum(len(part["rewards"]) for part in self._waiting)
        return size + size * waiting // self._written if self._written else sum(map(_size, self._waiting))

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes, in whole chunks: one that is written twice leaves a hole in the file."""
        arrays = to_arrays(block.columns(), self._spaces, exact=True)
        for name, numbers in (("environment", block.environment), ("episode", block.number)):
            arrays[f"metadata/{name}"] = np.repeat(numbers, block.lengths)
        if not self._rows:
            self._rows = max(1, self._chunk * len(block.reward) // _size(arrays))
            for name, values in arrays.items():
                inner, kind = values.shape[1:], library().string_dtype() if name == TEXT else values.dtype
                self._file.create_dataset(
                    name, (0, *inner), kind, maxshape=(None, *inner), chunks=(self._rows, *inner), **self._filter
                )
        self._waiting.append(arrays)
        waiting = sum(len(part["rewards"]) for part in self._waiting)
        self._write(waiting - waiting % self._rows)

    def close(self, about: dict[str, Any]) -> None:
        """Complete the file. about: all that is known of it."""
        self._write(sum(len(part["rewards"]) for part in self._waiting))
        self._file.attrs["etude"] = json.dumps(about)
        self._file.close()

    def _write(self, rows: int) -> None:
        """The first so many of the rows that wait."""
        if not rows:
            return
        joined = {name: np.concatenate([part[name] for part in self._waiting]) for name in self._waiting[0]}
        for name, values in joined.items():
            dataset = self._file[name]
            dataset.resize(self._written + rows, 0)
            dataset[self._written :] = values[:rows]
        self._written += rows
        self._waiting = [{name: values[rows:].copy() for name, values in joined.items()}]


def _size(arrays: dict[str, np.ndarray]) -> int:
    return sum(values.nbytes for values in arrays.values())


def read(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """(arrays by name, the text about the file or None). Raises DataError where it is damaged. What is below infos/ and
    metadata/, the simulator's inner state in D4RL's files, is not read."""
    with opened(path) as file:
        found, claimed = datasets(file, path)
        require_memory(path, claimed)
        return {name: np.asarray(dataset[()]) for name, dataset in found.items()}, file.attrs.get("etude")


def about(path: Path) -> str | None:
    """The text about the file; None where there is none. Raises DataError where it is damaged."""
    with opened(path) as file:
        return file.attrs.get("etude")


def stream(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """What `read` returns, some rows at a time. Raises DataError where it is damaged."""
    with opened(path) as file:
        found, claimed = datasets(file, path)
        lengths = {len(dataset) if dataset.shape else 0 for dataset in found.values()}
        if len(lengths) > 1:  # whatever is wrong is said of all of it
            require_memory(path, claimed)
        count = max(lengths, default=0)
        rows = count if len(lengths) > 1 else max(1, BLOCK * count // max(1, claimed))
        for start in range(0, count, max(1, rows)):
            here = slice(start, start + rows)
            yield {name: np.asarray(dataset[here] if dataset.shape else dataset[()]) for name, dataset in found.items()}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An HDF5 file to read; DataError for what is wrong with it."""
    with reading(path, "HDF5", RuntimeError, TypeError), library().File(path, "r") as file:
        yield file


def datasets(group: Any, path: Path, images: Collection[str] = (), infos: bool = False) -> tuple[dict[str, Any], int]:
    """The data sets to read, by name, and the bytes that they take in memory. DataError for any that is no array of
    numbers in this file itself.

    images: names of those that hold JPEG images, each in bytes. infos: whether those below infos/ are read.
    """
    left = tuple(f"{TEXT}/" if infos and name == "infos/" else name for name in LEFT_ALONE)
    found = _datasets(group, path, left)
    for name in [name for name, dataset in found.items() if dataset.dtype.kind in "OSU" and name not in images]:
        pass_over(name, f"dtype {found.pop(name).dtype}", path)
    return found, sum(_bytes(dataset, path, name, name in images) for name, dataset in found.items())


def _datasets(file: Any, path: Path, left: tuple[str, ...]) -> dict[str, Any]:
    """The data sets to read, by name. Links within a file are not followed, and those out of it refused."""
    h5py = library()
    found: dict[str, Any] = {}
    waiting, seen = [("", file, 0)], 0
    while waiting:
        prefix, group, depth = waiting.pop()
        seen += len(group)
        if seen > MOST_ITEMS or depth > DEEPEST:
            raise DataError(f"{path}: it holds more than {MOST_ITEMS} items, or groups nested over {DEEPEST} deep.")
        for key in group:
            name, link = f"{prefix}{key}", group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise DataError(f"{path}: {name!r} is a link to another file. Copy what it names into this one.")
            if not isinstance(link, h5py.HardLink) or f"{name}/".startswith(left):
                continue
            item = group[key]
            if isinstance(item, h5py.Group):
                waiting.append((f"{name}/", item, depth + 1))
            elif isinstance(item, h5py.Dataset):
                found[name] = item
    return dict(sorted(found.items()))


def _bytes(dataset: Any, path: Path, name: str, image: bool) -> int:
    """How many a data set takes in memory; DataError where it is no array of numbers that this file itself holds."""
    properties = dataset.id.get_create_plist()
    if dataset.is_virtual or properties.get_external_count():
        raise DataError(f"{path}: column {name!r} is kept in another file. Copy its numbers into this one.")
    if image and library().check_vlen_dtype(dataset.dtype) == np.uint8:
        return dataset.id.get_storage_size()  # of pointers; decoding checks what they point to
    if dataset.shape is None or dataset.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: column {name!r} has dtype {dataset.dtype}; expected numbers. Remove the column, or put it below "
            "infos/."
        )
    sizes = [math.prod(shape) * dataset.dtype.itemsize for shape in (dataset.shape, dataset.chunks or ())]
    claimed = max(sizes) if dataset.size else 0
    require_stored(path, name, claimed, dataset.id.get_storage_size())
    return claimed


def library() -> Any:
    """h5py; MissingExtra where it is not installed."""
    with needing("Reading and writing HDF5 files", "offline"):
        import h5py
    return h5py
