"""`etude list`: algorithms, the spaces that they accept, and presets."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from etude.algorithms import ALGORITHMS
from etude.cli.options import parse
from etude.cli.output import rows, say


@dataclass(frozen=True)
class List:
    """List the algorithms with the spaces that they accept, and the environments that have tuned hyperparameters."""


def main(arguments: Sequence[str]) -> int:
    """Print both lists."""
    parse(List, arguments, "list")
    say("Algorithms (observations of any kind: vectors, images, Discrete, Dict and Tuple of these)\n")
    rows(
        [
            (
                name,
                ", ".join(space.__name__ for space in agent.actions) + " actions",
                (inspect.getdoc(agent) or "").split("\n")[0],
            )
            for name, (agent, _) in ALGORITHMS.items()
        ],
        indent="  ",
    )
    return 0
