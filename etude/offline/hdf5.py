"""Arrays by name in an HDF5 file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import DataError, MissingExtra
from etude.offline.limits import LEFT_ALONE, require_memory, require_stored

MOST_ITEMS, DEEPEST = 1000, 16


def write(path: Path, arrays: dict[str, np.ndarray], about: str) -> None:
    """Write arrays, compressed; `/` in a name makes a group. about: text about the file."""
    with _h5py().File(path, "w", libver="v110") as file:  # the first that has checksums of what is not numbers
        file.attrs["etude"] = about
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", compression_opts=1, shuffle=True)


def read(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """(arrays by name, the text about the file or None). Raises DataError where it is damaged. What is below infos/ and
    metadata/, the simulator's inner state in D4RL's files, is not read."""
    try:
        with _h5py().File(path, "r") as file:
            found = _datasets(file, path)
            require_memory(path, sum(_bytes(dataset, path, name) for name, dataset in found.items()))
            return {name: np.asarray(dataset[()]) for name, dataset in found.items()}, file.attrs.get("etude")
    except DataError:
        raise
    except (LookupError, MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: it is no HDF5 file, or is incomplete ({error}). Record or download it again."
        ) from None


def _datasets(file: Any, path: Path) -> dict[str, Any]:
    """The data sets to read, by name. Links within a file are not followed, and those out of it refused."""
    h5py = _h5py()
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
            if not isinstance(link, h5py.HardLink) or f"{name}/".startswith(LEFT_ALONE):
                continue
            item = group[key]
            if isinstance(item, h5py.Group):
                waiting.append((f"{name}/", item, depth + 1))
            elif isinstance(item, h5py.Dataset):
                found[name] = item
    return dict(sorted(found.items()))


def _bytes(dataset: Any, path: Path, name: str) -> int:
    """How many a data set takes in memory; DataError where it is no array of numbers that this file itself holds."""
    properties = dataset.id.get_create_plist()
    if dataset.is_virtual or properties.get_external_count():
        raise DataError(f"{path}: column {name!r} is kept in another file. Copy its numbers into this one.")
    if dataset.shape is None or dataset.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: column {name!r} has dtype {dataset.dtype}; expected numbers. Remove the column, or put it below "
            "infos/."
        )
    sizes = [math.prod(shape) * dataset.dtype.itemsize for shape in (dataset.shape, dataset.chunks or ())]
    claimed = max(sizes) if dataset.size else 0
    require_stored(path, name, claimed, dataset.id.get_storage_size())
    return claimed


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtra("Reading and writing HDF5 files", "offline") from None
    return h5py
