"""`etude evaluate`: how good a trained agent is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from etude.cli.options import one_run, parse, split_positionals, task
from etude.cli.output import say


@dataclass(frozen=True)
class Evaluate:
    """Report the mean return of the agent of RUN, a run directory or a checkpoint file.

    It takes its best actions in separate environments, with frozen normalisers.
    """

    episodes: int = 20  # whole episodes
    seed: int | None = None  # of the episodes; None: derived from the run's seed, different from those of training
    steps: int | None = None  # environment steps that the episodes take at least; None: any
    max_steps: int | None = None  # step limit of an episode; None: 10,000 if ENV has no time limit
    task: str | None = None  # of the episodes, such as 60 or "{'distance': 60}"; None: the run's
    checkpoint: Literal["last", "best"] = "last"  # checkpoint of a run directory: newest, or highest evaluated return
    env: str | None = None  # another environment with the same spaces; None: the run's
    agent: str | None = None  # FILE.py:CLASS or MODULE:CLASS, where RUN is the file of an agent of one's own
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Print the returns."""
    names, rest = split_positionals(arguments)
    options: Evaluate = parse(Evaluate, rest, "evaluate RUN")
    path = one_run(names, "evaluate")
    from etude.cli.runs import own_agent, trained

    if options.agent is not None:
        own = own_agent(path, options.agent)
        found = own.evaluate(options.episodes, options.seed or 0, options.max_steps or 10_000)
        say(f"{type(own).__name__} after {own.total_episode:,} episodes: {found}")
        return 0
    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        given = task(options.task)
        found = run.evaluate(options.episodes, options.seed, options.max_steps, task=given, steps=options.steps)
        say(f"{run.algorithm} on {run.environment} after {run.step:,} steps: {found}")
    return 0
