"""`etude evaluate`: how good a trained agent is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from etude.cli.options import one_run, parse, split_positionals
from etude.cli.output import say


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the agent of RUN, a run directory or a checkpoint file.

    It takes its best actions, on environments of their own and with frozen normalisers.
    """

    episodes: int = 20
    seed: int | None = None  # of the episodes; None: one that belongs to the run and was not trained on
    max_steps: int | None = None  # of an episode; None: 10,000 where ENV declares no time limit
    checkpoint: Literal["last", "best"] = "last"  # of a run directory: the newest, or the best evaluated
    env: str | None = None  # another environment than the run's, with the same spaces
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Print the returns."""
    names, rest = split_positionals(arguments)
    options: Evaluate = parse(Evaluate, rest, "evaluate RUN")
    path = one_run(names, "evaluate")
    from etude.cli.runs import trained

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        found = run.evaluate(options.episodes, options.seed, options.max_steps)
        say(f"{run.algorithm} on {run.environment} after {run.step:,} steps: {found}")
    return 0
