"""The parts of a run that its kind of learning makes, and the recorded data that they are made with."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, NamedTuple

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import ALGORITHMS
from etude.base.errors import ConfigError
from etude.base.events import Started
from etude.base.spaces import Spaces
from etude.engines.replicas import Replicas
from etude.envs import action_space_of
from etude.explore.explorer import with_log_prob
from etude.offline.loading import RecordedData, load_data
from etude.protocols import Engine, Explorer, ProcessGroup
from etude.training.build.exploration import explorer_for
from etude.training.build.replicas import check_divisible, divided_environments
from etude.training.build.rewriting import rewriters_for
from etude.training.build.usable import check_collects_steps, takes_data
from etude.training.kinds import TrainingContext, kind_of
from etude.training.loop import Collecting, Learning
from etude.training.setup import Setup
from etude.training.sources import Sources, sources_for


class LogProbRequest:
    """Whether a callback of the present call of `train` asked for steps with the log probabilities of their actions. Of
    several processes, callbacks are called in the first alone: then nothing is asked for."""

    def __init__(self, group: ProcessGroup | None):
        self.asked: bool = False
        self._possible = group is None

    def started(self, step: int, description: dict[str, Any], context: TrainingContext) -> Started:
        """The event of a call of `train`, by which a callback may ask."""
        self.asked = False
        return Started(step, description, functools.partial(recorded_spaces, context), self._ask)

    def _ask(self) -> None:
        self.asked = self._possible


class RunParts(NamedTuple):
    """What trains an agent. learning, collecting: the two halves of the loop."""

    learner: Any  # a `RunLearning`, with what its kind of learning has
    learning: Learning
    collecting: Collecting
    log_prob: LogProbRequest


def context_for(
    agent: Agent,
    engine: Engine,
    environment: Any,
    setup: Setup,
    data: Sources | None,
    group: ProcessGroup | None = None,
) -> TrainingContext:
    """What the parts of a run are made from, with the recorded data that terms of the agent's losses read. group: the
    processes that train the run, where there are several."""
    terms: dict[str, RecordedData] = {}
    if agent.recorded:
        action = action_space_of(environment)
        terms = {name: load_data(own.data, engine.spaces, action) for name, own in agent.recorded.items()}
    return TrainingContext(agent, engine, environment, setup, data, terms, group)


def run_parts(context: TrainingContext, explorer: Explorer | None, rewrite: tuple[Any, ...]) -> RunParts:
    """The parts of a run. explorer: the one that the user gave. rewrite: rewriters, see `build.rewriting`."""
    kind, agent, engine = kind_of(context.agent), context.agent, context.engine
    rewriters = rewriters_for(rewrite, context, functools.partial(_engine_beside, context))
    learner, log_prob = kind.make_learner(context, rewriters), LogProbRequest(context.group)

    def make_explorer(total: int) -> Explorer:
        found = explorer_for(agent, engine.spaces, explorer, total, context.count)
        return with_log_prob(found) if log_prob.asked else found

    return RunParts(learner, *kind.loop_parts(learner, context, make_explorer), log_prob)


def _engine_beside(context: TrainingContext, agent: Agent, seed: int) -> Engine:
    """An engine of the run's framework for another agent."""
    setup = dataclasses.replace(context.setup, seed=seed, engine=context.engine.name, compiled=False)
    return kind_of(context.agent).make_engine(agent, context.engine.spaces, setup)


def engine_for(agent: Agent, spaces: Spaces, setup: Setup, replicas: Replicas | None = None) -> Engine:
    """The engine that evaluates and trains an agent. replicas: on several devices, from `replicas_for`."""
    return kind_of(agent).make_engine(agent, spaces, setup, replicas)


def with_environments(
    setup: Setup, algorithm: str, agent: Agent, environment: Any, replicas: Replicas | None = None
) -> Setup:
    """The setup with the number of environments that are stepped in parallel: where nobody says how many, at least one
    in each process. ConfigError where an agent of this kind cannot be trained with it."""
    kind_of(agent).check_setup(agent, setup)
    if setup.keep_info:
        check_collects_steps(agent, f"keep_info = {setup.keep_info!r}")
    preset = presets.lookup(algorithm, environment) if isinstance(environment, str) else None
    count = kind_of(agent).environment_count(agent, setup, None if preset is None else preset.environments)
    if replicas is not None and kind_of(agent).steps_environments:
        count = divided_environments(setup, count, replicas)
    check_divisible(agent, count, replicas)
    return dataclasses.replace(setup, environments=count)


def recorded_spaces(context: TrainingContext) -> Spaces:
    """The spaces of recordings of a run: actions as the environment takes them."""
    return dataclasses.replace(context.engine.spaces, action=action_space_of(context.environment))


def data_for(data: Any, agent: Agent, env: Any, spaces: Spaces) -> tuple[Agent, Sources | None]:
    """(the agent, with the kind of learning that it has on this data; what its batches are drawn from). None for an
    agent that learns from its environment alone. ConfigError where data and agent do not go together."""
    kind, name = kind_of(agent), type(agent).__name__
    if data is None:
        if kind.uses_data:
            raise ConfigError(
                f"{name} learns from recorded data: give data= (--data), such as the path of a file of episodes."
            )
        return agent, None
    if not (kind.uses_data or kind.takes_data):
        known = [algorithm for algorithm in ALGORITHMS if takes_data(algorithm)]
        raise ConfigError(f"{name} learns from an environment and takes no data; {', '.join(known)} do.")
    if spaces.agents is not None:
        raise ConfigError("data= holds episodes of one agent; this environment has several. Leave data out.")
    action = action_space_of(env)
    sources = sources_for(data, lambda each: load_data(each, spaces, action))
    learns_from = kind.for_data(agent, sources)
    if learns_from is not kind:
        agent = copy.copy(agent)
        agent.learns_from = learns_from
    return agent, sources
