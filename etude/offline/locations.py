"""Where recorded data is: files, folders, patterns, Minari data sets, and remote addresses."""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from etude.base.errors import ConfigError, DataError, MissingExtra
from etude.offline import minari
from etude.offline.files import FORMATS

REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://")
T = TypeVar("T")


def is_remote(source: str) -> bool:
    """Whether a source is an address, such as `s3://bucket/folder`."""
    return REMOTE.match(source) is not None


def files_at(source: str | os.PathLike[str] | Iterable[Any]) -> tuple[str, ...]:
    """The files of recorded data that a source names, in order: paths, or remote addresses.

    source: a file, a folder of them, a pattern (`runs/*/*.parquet`), a Minari data set (its folder or its id), a remote
    folder or file, or a list of these. Raises DataError where there are none.
    """
    if not isinstance(source, str | os.PathLike):
        return tuple(file for each in source for file in files_at(each))
    text = os.fspath(source)
    if is_remote(text):
        return _remote_files(text)
    path = Path(text)
    if path.is_dir() and not minari.is_minari(path):
        found = _in_folder(path)
    elif path.exists():
        found = [path]
    elif glob.has_magic(text):
        found = sorted(Path(each) for each in glob.glob(text, recursive=True))
        found = [file for each in found for file in ([each] if not each.is_dir() or minari.is_minari(each) else [])]
    else:
        found = [each for each in (_minari_folder(text),) if each is not None]
        if not found:
            raise DataError(f"{text}: there is no such file, folder or Minari data set.")
    if not found:
        raise DataError(f"{text}: there is no recorded data in it; expected files that end in {', '.join(FORMATS)}.")
    return tuple(map(str, found))


@contextmanager
def local(file: str) -> Iterator[Path]:
    """A file on this machine: itself, or a copy of a remote one, which is removed afterwards."""
    if not is_remote(file):
        yield Path(file)
        return
    folder = Path(tempfile.mkdtemp(prefix="etude-"))
    try:
        copy = folder / PurePosixPath(file).name
        try:
            with _fsspec().open(file, "rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{file}: it cannot be read ({error}). Check the address and your access.") from None
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share(files: tuple[T, ...], part: int, parts: int) -> tuple[T, ...]:
    """Every `parts`-th file, from number `part` on. Raises ConfigError where some part would have none."""
    if not 0 <= part < parts:
        raise ConfigError(f"part = {part} of {parts}; expected a number from 0 to {parts - 1}.")
    if len(files) < parts:
        raise ConfigError(
            f"There are {len(files)} files for {parts} parts, and each needs one. Record with a smaller max_bytes, or "
            "read with fewer parts."
        )
    return files[part::parts]


def _in_folder(folder: Path) -> list[Path]:
    entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    return [each for each in entries if _is_data(each)]


def _is_data(path: Path) -> bool:
    return minari.is_minari(path) or (path.is_file() and path.name.endswith(tuple(FORMATS)))


def _minari_folder(name: str) -> Path | None:
    """The folder of a Minari data set, where Minari keeps it; None where it is not there."""
    if os.path.isabs(name) or ".." in Path(name).parts:
        return None
    path = minari.root() / name
    return path if minari.is_minari(path) else None


def _remote_files(address: str) -> tuple[str, ...]:
    fsspec = _fsspec()
    try:
        system, path = fsspec.core.url_to_fs(address)
        if path.endswith(tuple(FORMATS)) and not glob.has_magic(path):
            return (address,)
        found = system.glob(path) if glob.has_magic(path) else system.ls(path, detail=False)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"{address}: it cannot be listed ({error}). Check the address and your access.") from None
    files = sorted(each for each in found if each.endswith(tuple(FORMATS)) and not _hidden(each))
    if not files:
        raise DataError(f"{address}: there is no recorded data in it; expected files that end in {', '.join(FORMATS)}.")
    return tuple(system.unstrip_protocol(each) for each in files)


def _hidden(name: str) -> bool:
    return PurePosixPath(name).name.startswith(".")


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingExtra("Reading remote data", "remote") from None
    return fsspec
