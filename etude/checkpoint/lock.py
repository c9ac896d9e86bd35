"""A lock that belongs to a process and ends with it, however it ends."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

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
