"""Python programs in processes of their own: where workers of tests are forks, forks of the same process, which has
imported what they need; elsewhere new interpreters."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path


def start(
    *arguments: object, environment: Mapping[str, str] | None = None, forked: bool = True
) -> subprocess.Popen[str] | ForkedProgram:
    """Start `python ARGUMENTS`, the first of which is a file, "-c" or "-m"; what it writes is read by `communicate`.

    forked: False for a new interpreter, whose strings have other hashes.
    """
    given = [str(argument) for argument in arguments]
    own = dict(os.environ if environment is None else environment)
    if forked and forkserver._forkserver._forkserver_pid is not None:
        return ForkedProgram(given, own)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (own.get("PYTHONPATH"), *sys.path)))  # which forks have as well
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *given], env=own, stdout=pipe, stderr=pipe, text=True)


class ForkedProgram:
    """What tests need of a `subprocess.Popen`."""

    def __init__(self, arguments: list[str], environment: dict[str, str]):
        self._written = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115
        names = [file.name for file in self._written]
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=run, args=(arguments, environment, names))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; one that takes longer is killed, as this process would wait for it when it ends."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> list[str]:
        self.wait(timeout)
        return [Path(file.name).read_text(errors="replace") for file in self._written]

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


def run(arguments: Sequence[str], environment: Mapping[str, str], written: Sequence[str]) -> None:
    """Be this program, which writes into these files."""
    for number, name in enumerate(written, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    first, *rest = arguments
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], ["", *paths]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[:0] = rest, ["", *paths]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [first, *rest], [str(Path(first).parent), *paths]
        runpy.run_path(first, run_name="__main__")
