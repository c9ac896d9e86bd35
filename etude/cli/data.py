"""`etude data`: what recorded data holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING

import numpy as np

from etude.base.errors import ConfigError
from etude.base.spaces import describe
from etude.cli.options import parse, split_positionals
from etude.cli.output import rows, say
from etude.report.terminal import printable

if TYPE_CHECKING:
    from etude.offline.reader import Inspection

BINS, WIDEST = 10, 40  # of the histogram: its bars, and the characters of the longest
SHOWN = 20  # files of a kind
LONGEST = 2_000  # characters of a game


@dataclass(frozen=True)
class Data:
    """Describe recorded data: spaces, episodes, returns, what recorded it, and damage.

    SOURCE is a file, a folder, a pattern, a Minari data set, or a remote address. All of it is read. The exit code is 1
    if something is damaged or was not finished.
    """

    env: str | None = None  # a Gymnasium id, for files that do not say their spaces (D4RL, RLlib)


def main(arguments: Sequence[str]) -> int:
    """Print the description."""
    names, rest = split_positionals(arguments)
    options: Data = parse(Data, rest, "data SOURCE")
    if not names:
        raise ConfigError("data takes what to read: a file, a folder or a pattern. Usage: etude data FOLDER")
    from etude.envs import action_space_of, examine
    from etude.offline.reader import inspect

    spaces = None
    if options.env is not None:
        from dataclasses import replace

        spaces = replace(examine(options.env, play=False).spaces, action=action_space_of(options.env))
    found = inspect(names[0] if len(names) == 1 else names, spaces)
    _describe(found)
    _damage(found)
    return 1 if found.damaged or found.unfinished else 0


def _describe(found: Inspection) -> None:
    if found.spaces is not None:
        observation, action = describe(found.spaces.observation), describe(found.spaces.action)
        rows([("environment", found.environment or "not recorded"), ("observations", observation), ("actions", action)])
    rows([
        ("files", f"{found.files:,}"),
        ("episodes", f"{len(found.returns):,} ({found.terminated:,} terminated)"),
        ("transitions", f"{found.transitions:,}" + (f" ({found.dropped:,} dropped)" if found.dropped else "")),
        ("extras", ", ".join(sorted(found.extras)) or "none"),
        ("behaviour", "; ".join(found.behaviour) or "none"),
    ])  # fmt: skip
    if found.returns:
        lengths = np.array(found.lengths)
        say(f"lengths       mean {lengths.mean():.1f}, from {lengths.min():,} to {lengths.max():,}")
        _histogram(np.array(found.returns))
    for i, text in enumerate(found.texts):
        say(f"episode {i}, return {found.returns[i]:g}")
        say(indent(printable(text, LONGEST), "  "))


def _histogram(returns: np.ndarray) -> None:
    say(f"returns       mean {returns.mean():.2f}, standard deviation {returns.std():.2f}")
    counts, edges = np.histogram(returns, 1 if returns.min() == returns.max() else BINS)
    bars = zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    rows([(f"{low:.1f}", f"to {high:.1f}", f"{count:,}", "#" * round(WIDEST * count / counts.max()))
          for low, high, count in bars], indent="  ")  # fmt: skip


def _damage(found: Inspection) -> None:
    for text in list(found.damaged.values())[:SHOWN]:
        say(f"damaged: {text}")
    if len(found.damaged) > SHOWN:
        say(f"damaged: {len(found.damaged) - SHOWN} more files")
    for path in found.unfinished[:SHOWN]:
        say(f"unfinished: {path} is being written, or was when its process ended. A resumed run records it again.")
    for path in found.superseded[:SHOWN]:
        say(f"superseded: {path} holds steps that a resumed run recorded again. It can be removed.")
