"""Plain text for people, which other programs can read as well."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from etude.report.terminal import Lasting


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
    rows(
        [
            (f"etude evaluate {directory}", "the return over 20 episodes"),
            (f"etude watch {directory}", "see it play (--video out.gif without a display)"),
            (f"etude plot {directory}", "its learning curve"),
            (f"etude resume {directory} --steps N", "train on, to N steps"),
        ],
        indent="  ",
    )
