"""Files that are either wholly new or untouched, whatever happens while they are written; and a lock that belongs to a
process and ends with it, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = (
    ".saving"  # how the names of unfinished files end; they also begin with a dot, so that no `*.etude` finds them
)


def create(path: Path) -> BinaryIO:
    """Open a file for writing that must not exist yet."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def temporary_beside(path: Path) -> Path:
    """A name for a file that is to take the place of `path`; `RunDirectory` removes what a killed process leaves."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends, durably.

    If anything is raised, `path` is as it was and nothing is left behind. A process that is killed in between leaves a
    temporary file `.NAME.XXXX.saving`.

    Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI: a rename is only safe after an fsync of the
    data, and only durable after an fsync of the directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = temporary_beside(path)
    try:
        with create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def discard(paths: Iterable[Path]) -> None:
    """Remove files. Those that cannot be removed stay, and nothing is raised: training goes on."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that cannot, and need not
            raise
    finally:
        os.close(descriptor)


_HOLDER = re.compile(r"process (\d+) on (.*)")


class Locked(Exception):
    """Somebody else holds the lock; the message says who."""


class Lock:
    """An exclusive lock on a file, held until `release`, or until this object or the process is gone.

    The kernel keeps it (flock), so that a killed process leaves no stale lock; the file stays and means nothing alone.
    `held` is False on file systems without locks. Raises Locked, and OSError where the file cannot be opened.
    """

    def __init__(self, path: Path):
        # A directory may have come from elsewhere: where `path` is a link, what it points to is not to be written over.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held: bool = True
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace")
            os.close(descriptor)
            raise Locked(holder or "another process") from None
        except OSError:
            self.held = False
        self.process: int = os.getpid()
        self.release: Callable[[], object] = weakref.finalize(self, _release, descriptor, self.held, self.process)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _release(descriptor: int, held: bool, process: int) -> None:
    if held and os.getpid() == process:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also where a forked child still has the file open
    os.close(descriptor)


def holder(path: Path) -> tuple[int, str] | None:
    """(process, host) that last took the lock in a file; None where it does not say so. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = _HOLDER.fullmatch(os.read(descriptor, 200).decode(errors="replace").strip("\0\n "))
    finally:
        os.close(descriptor)
    return None if found is None else (int(found[1]), found[2])
