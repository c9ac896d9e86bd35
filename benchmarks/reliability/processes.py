"""Commands of etude in forks of this process, which has imported what they need, and what becomes of processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path


class Command:
    """`etude WORDS` in a fork of this process and a session of its own, up to the end of its process.

    output: the file of its standard output and errors. variables: of its environment, besides this process's.
    """

    def __init__(self, words: list[str], output: Path, variables: dict[str, str] | None = None):
        self.code: int | None = None  # its exit code, or less the signal that ended it; None while it runs
        self.pid = os.fork()
        if self.pid == 0:
            _be_etude(words, output, variables or {})

    def wait(self, seconds: float) -> int | None:
        """Its exit code, as soon as it has ended; None after so many seconds."""
        until = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(0.002)
        return self.code

    def kill(self) -> None:
        """End it with SIGKILL, if it has not ended."""
        if self.wait(0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _be_etude(words: list[str], output: Path, variables: dict[str, str]) -> None:
    code = 99
    try:
        file = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.setsid()
        os.environ.update(variables)
        sys.argv = ["etude", *words]
        from etude import cli

        code = cli.main()
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of every program
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def workers_of(process: int) -> list[int]:
    """The direct children of a process that run Python's spawned workers."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return sorted(child for child in found if "spawn_main" in _command_line(child))


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def outliving(processes: list[int], seconds: float) -> list[int]:
    """Those that still run after so many seconds."""
    until = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
