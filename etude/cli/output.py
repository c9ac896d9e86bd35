"""Plain text for people, which other programs can read as well; and versions of what is installed."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, TextIO

import gymnasium as gym

from etude import __version__
from etude.base.text import Lasting

ENGINES: dict[str, tuple[str, ...]] = {
    "jax": ("jax", "keras"),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "keras"),
}
NAMES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow_cpu"), "Box2D": ("Box2D", "box2d-py", "box2d")}


def version(library: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    for name in NAMES.get(library, (library,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def used_by(description: dict[str, Any]) -> dict[str, str]:
    """The versions of what a run uses, from its `Run.description`: Python, etude, the engine's framework, and the
    package of its environment, where that is named and installed."""
    libraries = ["numpy", "gymnasium", *ENGINES.get(description.get("engine", ""), ())]
    module = _module(description["environment"]) if description.get("environment_is_named") else "numpy"
    if module not in libraries:  # to look for what holds a module reads what is said of every package
        libraries += metadata.packages_distributions().get(module, [])[:1]
    found = {library: number for library in libraries if (number := version(library))}
    return {"python": platform.python_version(), "etude": __version__, **found}


def _module(env: str) -> str:
    """The outermost module that an environment's name stands for."""
    name = env.rpartition(":")[2]
    entry = gym.spec(name).entry_point if name in gym.registry else None
    where = entry if isinstance(entry, str) else env if ":" in env else ""
    return where.partition(":")[0].partition(".")[0]


def say(text: str = "") -> None:
    """A line on the standard output."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """A line on the standard error stream."""
    _write(sys.stderr, text)


def in_colour() -> bool:
    """Whether the standard output is a terminal whose user has not asked for plain text (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _write(stream: TextIO, text: str) -> None:
    lasting = Lasting(stream)
    lasting.write(text + "\n")
    lasting.flush()


def leave_what_is_gone() -> None:
    """Let Python end without complaint where the reader of its output is gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def rows(table: Iterable[Sequence[str]], indent: str = "", wrap: bool = False) -> None:
    """Lines with aligned columns. wrap: the last column within the width of the terminal."""
    lines = [[str(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = sum(widths[:-1]) + 2 * len(widths[:-1]) + len(indent)
    for line in lines:
        text = indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        width = max(shutil.get_terminal_size().columns, left + 30)
        say(textwrap.fill(text, width, subsequent_indent=" " * left, break_on_hyphens=False) if wrap else text)


def next_commands(directory: str) -> None:
    """Where a run is, and what can be done with it."""
    say(f"\nThe run is in {directory}")
    directory = shlex.quote(directory)
    rows(
        [
            (f"etude evaluate {directory}", "the return over 20 episodes"),
            (f"etude watch {directory}", "see it play (--video out.gif without a display)"),
            (f"etude plot {directory}", "its learning curve"),
            (f"etude resume {directory} --steps N", "train on, to N steps"),
        ],
        indent="  ",
    )
