"""The Python stacks of a process, for another process that asks: `etude stacks` for a run that seems stuck.

faulthandler writes them on SIGUSR2, also where Python is stuck in C, into memory without a name on any disk, which
the one who asks finds under /proc. Only Linux has such memory; elsewhere nothing is set up.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
from pathlib import Path

_MEMORY = "etude-stacks"
_SETTLED = 0.1  # seconds without another byte, after which all stacks are written


def answer_requests() -> None:
    """Write the stacks of all threads of this process on SIGUSR2, from now on. Nothing changes where the program
    handles SIGUSR2 itself. May be called twice."""
    if not hasattr(os, "memfd_create") or memory_of(os.getpid(), _MEMORY) is not None:
        return
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        # The descriptor stays open with the handler, until the process ends: without it SIGUSR2 would end the process.
        faulthandler.register(signal.SIGUSR2, os.memfd_create(_MEMORY))


def stacks_of(process: int, seconds: float = 3.0) -> str | None:
    """The stacks of a process that answers; None for another one, and '' where it does not answer in so many
    seconds."""
    memory = memory_of(process, _MEMORY)
    if memory is None:
        return None
    begin = size = memory.stat().st_size
    os.kill(process, signal.SIGUSR2)
    until = changed = time.monotonic()
    until += seconds
    while time.monotonic() < until and (size == begin or time.monotonic() < changed + _SETTLED):
        time.sleep(_SETTLED / 10)
        if (now := memory.stat().st_size) != size:
            size, changed = now, time.monotonic()
    with memory.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that they did; in the order of their numbers."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):  # it has ended
            continue
    found: set[int] = set()
    last = {process}
    while last := {child for child, parent in parents.items() if parent in last} - found:
        found |= last
    return sorted(found)


def holds(process: int, path: Path) -> bool:
    """Whether a process has a file open."""
    return any(link == str(path.resolve()) for _, link in _open_files(process))


def here(host: str) -> bool:
    """Whether a host is this one."""
    return host == socket.gethostname()


def memory_of(process: int, name: str) -> Path | None:
    """The memory of this name that a process has made by `os.memfd_create`; None where it has none."""
    return next((path for path, link in _open_files(process) if link.startswith(f"/memfd:{name}")), None)


def _open_files(process: int) -> list[tuple[Path, str]]:
    found = []
    try:
        for path in Path(f"/proc/{process}/fd").iterdir():
            try:
                found.append((path, os.readlink(path)))
            except OSError:  # it was closed
                continue
    except OSError:  # the process has ended, or belongs to somebody else
        return []
    return found
