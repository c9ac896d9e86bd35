"""Runs that differ in their seeds, trained step by step in one process: their environments are stepped together."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.events import Event
from etude.base.seeding import MemberSeeds
from etude.engines.stacked import StackedActor
from etude.envs import make_environments
from etude.explore import PerMember
from etude.protocols import Explorer
from etude.rollout import InProcess, JointRollout
from etude.run.run import Run
from etude.training.kinds import kind_of
from etude.training.kinds.kind import vectorization_for
from etude.training.learner import Learner
from etude.training.loop import in_turns

FAR = 1_000_000  # environment steps


class RunGroup:
    """Runs of one algorithm on one environment, of one config, that differ in their seeds.

    Each run has the numbers that it has alone, unless a vectorised simulator steps its environments: one simulator then
    steps those of all runs, with one generator.

    apart: why the runs are trained one after the other; None where they are stepped together. errors: by run, what
        ended it.
    """

    def __init__(self, runs: Sequence[Run]):
        self.runs: tuple[Run, ...] = tuple(runs)
        self.errors: dict[int, Exception] = dict[int, Exception]()
        self.apart: str | None = reason_apart(runs[0])
        if self.apart is None:
            self._join()

    def _join(self) -> None:
        for run in self.runs:
            run.loop.paced = True
        if self.runs[0].execution.fused:
            return
        context, members, count = self.runs[0].context, len(self.runs), self.runs[0].context.count
        seeds = MemberSeeds(tuple(run.execution.seed for run in self.runs), count)
        actor = StackedActor(context.agent, context.engine.spaces, members)
        vectorization, columns = vectorization_for(kind_of(context.agent), context), np.arange(members * count)

        def make(explorer: Explorer) -> InProcess:
            names = context.execution.keep_info
            environments = make_environments(context.environment, columns, seeds, vectorization, names)
            return InProcess(environments, actor, PerMember(explorer, members, count), seeds)

        joint = JointRollout(make, actor, members, count)
        for i, run in enumerate(self.runs):
            run.collection.collect_with(functools.partial(joint.member, i))

    def steps_until(self, end: int, **schedule: Any) -> Iterator[tuple[int, Event]]:
        """Train every run up to environment step `end`; yields (number of the run, its event). schedule: see
        `Run.steps`. A run that ends in an error, which `errors` holds then, does not end the others."""
        streams: dict[int, Iterator[Any]] = {
            i: run.steps(end - run.step, **schedule) for i, run in enumerate(self.runs) if run.step < end
        }
        return in_turns(streams, self.errors)

    def stop(self) -> None:
        """Ask all runs to end after the step at hand."""
        for run in self.runs:
            run.stop()

    def close(self) -> None:
        """End all runs. May be called twice."""
        for run in self.runs:
            run.close()


def reason_apart(run: Run) -> str | None:
    """Why the environments of a run cannot be stepped together with those of others; None where they can."""
    context, name = run.context, str(run.agent)
    if not isinstance(run.learner, Learner) or run.engine.spaces.agents is not None:
        return "it has several agents"
    if context.execution.workers:
        return "workers collect for it"
    if context.execution.vectorization == "compiled":
        return None if context.execution.fused else "a compiled program collects for it, and fused is off"
    if run.agent.config.adapt:
        return "rules adapt its hyperparameters"
    kind = kind_of(run.agent)
    if not kind.collects_steps or context.actor_priorities:
        return f"{name} learns from more than collected steps"
    if context.group is not None:
        return f"{name} collects in a way of its own"
    if run.learner.collect_request(FAR).steps is None:
        return f"{name} learns from whole episodes"
    if not run.engine.exportable:
        return "NumPy cannot act with its networks"
    try:
        StackedActor(run.agent, run.engine.spaces, 1)
    except ConfigError as error:
        return str(error)
    return None
