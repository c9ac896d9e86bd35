"""`etude list`: algorithms, the spaces that they accept, and presets."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from etude.agent import Agent
from etude.algorithms import ALGORITHMS
from etude.cli.options import parse
from etude.cli.output import rows, say
from etude.presets import PRESETS

MOST = max(len(agent.actions) for agent, _ in ALGORITHMS.values())  # kinds of action spaces


@dataclass(frozen=True)
class List:
    """List the algorithms with the spaces that they accept, and the environments that have tuned hyperparameters."""


def main(arguments: Sequence[str]) -> int:
    """Print both lists."""
    parse(List, arguments, "list")
    say("Algorithms and the action spaces that they support (any: Discrete,")
    say("MultiDiscrete, MultiBinary, Box and Hybrid). Observations: Box (vectors,")
    say("images), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these.\n")
    rows(
        [(name, actions(agent), title(config)) for name, (agent, config) in ALGORITHMS.items()], indent="  ", wrap=True
    )
    say("\nPresets: tuned hyperparameters, the defaults of `etude train`\n")
    tuned = [(name, env, preset) for name, presets in PRESETS.items() for env, preset in presets.items()]
    rows([(name, env, f"{preset.steps:,} steps") for name, env, preset in tuned], indent="  ")
    return 0


def actions(agent: type[Agent]) -> str:
    """The action spaces that an agent accepts."""
    return "any" if len(agent.actions) == MOST else ", ".join(space.__name__ for space in agent.actions)


def title(config: type) -> str:
    """The first sentence of the file that an algorithm is, or the settings that make it one."""
    text = " ".join((sys.modules[config.__module__].__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)]\.) (?=[A-Z])", text)[0]
