"""Where the arrays of a ring are allocated: in RAM, or memory-mapped in files of a folder.

Both give the same results. Memory-mapped files may exceed RAM; sampling a row that the operating system has not cached
costs a read from disk.
"""

from __future__ import annotations

import os
import shutil
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.files import Lock, Locked

OWNER, SUFFIX = "owner", ".ring"


class RamStorage:
    """Arrays in RAM."""

    def require(self, needed: int, what: str, advice: str) -> None:
        """Raise ConfigError where `needed` bytes are more than there are."""
        require_memory(needed, what, advice)

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
            owner = Lock(self.path / OWNER)
        except Locked as error:
            raise ConfigError(
                f"The folder {self.path} holds the replay of {error}, which still runs; expected one that no other "
                "ring uses. Give every ring a folder of its own, or close the other one first."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"The folder {self.path} for the replay cannot be used: {error}. Name one that can be written to."
            ) from error
        for left_over in self.path.glob(f"*{SUFFIX}"):
            left_over.unlink()
        self._count = 0
        self._finalizer = weakref.finalize(self, _remove, self.path, owner)

    def require(self, needed: int, what: str, advice: str) -> None:
        """Raise ConfigError where `needed` bytes are more than the disk has left."""
        refuse(needed, (shutil.disk_usage(self.path).free, f"on the disk of {self.path}"), what, advice)

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


def _remove(path: Path, owner: Lock) -> None:
    if os.getpid() == owner.process:  # a forked child has the folder open, too, and must leave it alone
        for file in path.glob(f"*{SUFFIX}"):
            file.unlink(missing_ok=True)
    owner.release()


UNLIMITED = 1 << 60  # control groups without a limit report 'max' or a number near 2**63


def available_memory(root: Path = Path("/")) -> tuple[int, str] | None:
    """Bytes that this process may still take, and what sets the limit; None where the system does not report it.

    The smaller of MemAvailable and of what is left in the control groups (version 2, then 1) of the process.
    """
    limits = [limit for limit in (_machine(root), *_groups(root)) if limit is not None]
    return min(limits) if limits else None


def require_memory(needed: int, what: str, advice: str) -> None:
    """Raise ConfigError if `needed` bytes exceed the available RAM."""
    limit = available_memory()
    if limit is not None:
        refuse(needed, limit, what, advice)


def refuse(needed: int, limit: tuple[int, str], what: str, advice: str) -> None:
    """Raise ConfigError if `needed` bytes exceed a limit (bytes, what sets it)."""
    if needed > limit[0]:
        raise ConfigError(f"{what} takes {_size(needed)}, but only {_size(limit[0])} is free ({limit[1]}). {advice}")


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"


def _machine(root: Path) -> tuple[int, str] | None:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024, "free memory of this machine"
    except (OSError, ValueError):
        pass
    return None


def _groups(root: Path) -> list[tuple[int, str] | None]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the host: then only the mount point itself exists.
        group = Path(path.lstrip("/"))
        found += [_group(base / parent, names) for parent in (group, *group.parents)]
    return found


def _group(folder: Path, names: tuple[str, str, str]) -> tuple[int, str] | None:
    try:
        limit, used = int((folder / names[0]).read_text()), int((folder / names[1]).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        reclaimable = int(statistics.get(names[2], 0))
    except (OSError, ValueError):
        return None
    return None if limit >= UNLIMITED else (max(0, limit - used + reclaimable), "memory limit of this container")
