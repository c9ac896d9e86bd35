"""Where the arrays of a ring are allocated: in RAM, or memory-mapped in files of a folder.

Both give the same results. Memory-mapped files may exceed RAM; sampling a row that the operating system has not cached
costs a read from disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.replay import ram

OWNER, SUFFIX = "owner", ".ring"


class RamStorage:
    """Arrays in RAM."""

    def require(self, needed: int, what: str, advice: str) -> None:
        """Raise ConfigError where `needed` bytes are more than there are."""
        ram.require(needed, what, advice)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.zeros(shape, dtype)

    def grown(self, array: np.ndarray, rows: int) -> np.ndarray:
        """A longer array that begins with the given one and replaces it."""
        return _copied(array, self.zeros((rows, *array.shape[1:]), array.dtype))

    def close(self) -> None: ...


class FileStorage:
    """Memory-mapped arrays in files of a folder that belongs to one ring at a time.

    The kernel keeps the lock (flock): a killed process leaves files behind, but no claim, and the next ring in the
    folder removes them. ConfigError where another ring, of this or any process, uses the folder.
    """

    def __init__(self, path: Path | str):
        self.path: Path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            owner = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise ConfigError(
                f"The folder {self.path} for the replay cannot be used: {error}. Name one that can be written to."
            ) from error
        _claim(owner, self.path)
        for left_over in self.path.glob(f"*{SUFFIX}"):
            left_over.unlink()
        self._count = 0
        self._finalizer = weakref.finalize(self, _remove, self.path, owner, os.getpid())

    def require(self, needed: int, what: str, advice: str) -> None:
        """Raise ConfigError where `needed` bytes are more than the disk has left."""
        ram.refuse(needed, (shutil.disk_usage(self.path).free, f"on the disk of {self.path}"), what, advice)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        path = self.path / f"{self._count:04}{SUFFIX}"
        self._count += 1
        mapped = np.memmap(path, dtype, "w+", shape=shape)
        _reserve(path, mapped.nbytes)
        return np.asarray(mapped)  # the plain class: what is taken from it must not be a memmap

    def grown(self, array: np.ndarray, rows: int) -> np.ndarray:
        """A longer array that begins with the given one, whose place it takes."""
        longer = _copied(array, self.zeros((rows, *array.shape[1:]), array.dtype))
        if isinstance(array.base, np.memmap):
            Path(str(array.base.filename)).unlink()
        return longer

    def close(self) -> None:
        """Remove the files. Their space is free once the arrays are gone as well."""
        self._finalizer()


def _copied(array: np.ndarray, longer: np.ndarray) -> np.ndarray:
    longer[: len(array)] = array
    return longer


def _claim(owner: int, path: Path) -> None:
    """Lock the folder through its open file `owner`, and write there who has it."""
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(owner, 200, 0).decode(errors="replace") or "another process"
        os.close(owner)
        raise ConfigError(
            f"The folder {path} holds the replay of {holder}, which still runs; expected one that no other ring uses. "
            "Give every ring a folder of its own, or close the other one first."
        ) from None
    except OSError:
        pass  # a file system without locks
    os.ftruncate(owner, 0)
    os.pwrite(owner, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _reserve(path: Path, size: int) -> None:
    """Take the blocks of a file now: writing to a mapped file on a full disk would end the process without an error."""
    if sys.platform != "linux":
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise ConfigError(
            f"The disk of {path.parent} has no room for {size:,} bytes of the replay: {error}. Free some space, or "
            "lower the replay's capacity."
        ) from error
    finally:
        os.close(descriptor)


def _remove(path: Path, owner: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has the folder open, too, and must leave it alone
        for file in path.glob(f"*{SUFFIX}"):
            file.unlink(missing_ok=True)
        fcntl.flock(owner, fcntl.LOCK_UN)  # or a forked child would keep the lock
    os.close(owner)
