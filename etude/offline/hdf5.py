"""Arrays by name in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import DataError, MissingExtra


def write(path: Path, arrays: dict[str, np.ndarray], about: str) -> None:
    """Write arrays, compressed; `/` in a name makes a group. about: text about the file."""
    with _h5py().File(path, "w") as file:
        file.attrs["etude"] = about
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", compression_opts=1, shuffle=True)


def read(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """(arrays by name, the text about the file or None). Raises DataError where it is damaged. What is below infos/ and
    metadata/, the simulator's inner state in D4RL's files, is not read."""
    h5py = _h5py()
    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(("infos/", "metadata/")):
            arrays[name] = item[()] if item.shape else np.asarray(item[()])

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
            return arrays, file.attrs.get("etude")
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(
            f"{path}: it is no HDF5 file, or is incomplete ({error}). Record or download it again."
        ) from None


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtra("Reading and writing HDF5 files", "offline") from None
    return h5py
