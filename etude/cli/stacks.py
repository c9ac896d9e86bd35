"""`etude stacks`: where in the code a run is that seems stuck, and its workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.base.errors import ConfigError
from etude.base.stacks import descendants, here, holds, stacks_of
from etude.checkpoint.files import holder
from etude.cli.options import one_run, parse, split_positionals
from etude.cli.output import say


@dataclass(frozen=True)
class Stacks:
    """Print the Python stacks of RUN, a run directory that a process trains in, and of its workers. The run goes on."""

    seconds: float = 3.0  # how long to wait for the answer of each process


def main(arguments: Sequence[str]) -> int:
    """Ask, and print."""
    names, rest = split_positionals(arguments)
    options: Stacks = parse(Stacks, rest, "stacks RUN")
    if sys.platform != "linux":
        raise ConfigError(f"etude stacks reads /proc, which {sys.platform} does not have; it works on Linux.")
    path = one_run(names, "stacks")
    process = _trainer_of(path)
    stacks = stacks_of(process, options.seconds)
    if stacks is None:
        raise ConfigError(
            f"Process {process}, which trains in {path}, does not write its stacks: it handles SIGUSR2 itself."
        )
    _print(f"process {process}, which trains", stacks)
    for child in descendants(process):
        if (stacks := stacks_of(child, options.seconds)) is not None:
            _print(f"worker process {child}", stacks)
    return 0


def _trainer_of(path: Path) -> int:
    """The process that trains in a run directory; ConfigError where there is none on this machine."""
    lock = path / ".lock"
    try:
        found = holder(lock)
    except OSError:
        raise ConfigError(f"{path} is no run directory that was trained in: it has no file .lock.") from None
    if found is None:
        raise ConfigError(f"{lock} does not say which process trains in {path}. Give a run directory.")
    process, host = found
    if not here(host):
        raise ConfigError(f"{path} was last trained in on {host}. Call etude stacks there.")
    if not holds(process, lock):
        raise ConfigError(f"No process trains in {path} now; the last one was process {process}.")
    return process


def _print(who: str, stacks: str) -> None:
    say(f"--- {who}")
    say(stacks.rstrip() or "It did not answer in time: the system keeps it from running (a disk, a driver, SIGSTOP).")
