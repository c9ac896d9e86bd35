"""Processes that another one forks for this one, which then has them as children of its own.

Importing what a worker needs takes longer than anything else that it does before its first time step. So the workers
of a pool are forks of one process that has imported it once; it holds no thread, framework or module of the user. Linux
gives the children of a process that ends to an ancestor which asks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickletools
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)
_one_at_a_time = threading.Lock()  # what adopting changes is of the whole process


class ForkedProcess:
    """What pools need of a `multiprocessing.Process`. forking: the process that forked it; the pipe that shows workers
    the end of this process is that one's, and closes when it is collected."""

    def __init__(self, number: int, forking: Any):
        self.pid: int = number
        self._forking = forking
        self.sentinel: int = os.pidfd_open(number)
        self._exitcode: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Its exit code, or less the signal that ended it; None while it runs."""
        with contextlib.suppress(ChildProcessError):
            if self._exitcode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self._exitcode = os.waitstatus_to_exitcode(ended[1])
        return self._exitcode

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""
        wait([self.sentinel], seconds)

    def kill(self) -> None:
        """End it by force."""
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Take its exit code from the system, which then forgets it. Only once it has ended."""
        self.exitcode  # noqa: B018
        os.close(self.sentinel)


def can_adopt() -> bool:
    """Whether this system has what it takes, and the program does not ask for "spawn"."""
    if sys.platform != "linux" or multiprocessing.get_start_method(allow_none=True) == "spawn":
        return False
    with contextlib.suppress(OSError):
        os.close(os.pidfd_open(os.getpid()))
        return _is_subreaper() is not None and os.path.exists("/proc/self/fd")
    return False


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Children of a process that ends here become children of this one."""
    with _one_at_a_time:
        before = _is_subreaper()
        _prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(_SET_CHILD_SUBREAPER, int(bool(before)))


def modules_named_by(job: bytes) -> list[str]:
    """The modules of etude that are named in a pickle."""
    names = {name for _, name, _ in pickletools.genops(job) if isinstance(name, str) and name.startswith("etude.")}
    return sorted(names & sys.modules.keys())


def _is_subreaper() -> bool | None:
    found = ctypes.c_int()
    return bool(found.value) if _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(found)) else None


def _prctl(option: int, argument: Any) -> bool:
    return ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0
