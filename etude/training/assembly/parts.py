"""The parts of a run that its kind of learning makes, with its rewriters and recorded data; by themselves, for a loop
of one's own, too."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import ALGORITHMS
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.events import Started
from etude.base.schedules import Linear
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.checkpoint.config_json import from_saved, to_json
from etude.engines.replicas import Replicas
from etude.envs import action_space_of
from etude.explore.explorer import with_log_prob
from etude.offline.loading import RecordedData, load_data
from etude.protocols import Engine, Explorer, ProcessGroup, Replay, Rollout
from etude.rewrite import SPECS, RewriterContext, Rewriters, RewriterSpec
from etude.training.assembly import exploration
from etude.training.assembly.agents import (
    agent_for,
    check_collects_steps,
    environment_for,
    fitted,
    takes_data,
    with_hyperparameters,
)
from etude.training.assembly.exploration import explorer_for
from etude.training.assembly.replicas import check_divisible, divided_environments
from etude.training.kinds import TrainingContext, environment_count, kind_of
from etude.training.kinds.kind import check_rewriting
from etude.training.learner import Learner
from etude.training.loop import Collection
from etude.training.setup import Setup
from etude.training.sources import Sources, sources_for


def as_rewriters(given: Any) -> tuple[Any, ...]:
    """One rewriter, or an iterable of them, as a tuple. ConfigError for what is none."""
    if given is None:
        return ()
    single = callable(given) or isinstance(given, RewriterSpec)
    found = tuple(given) if isinstance(given, Iterable) and not single else (given,)
    for each in found:
        if isinstance(each, type):
            raise ConfigError(f"rewrite = {each.__name__} is a class; make one: {each.__name__}(...).")
        if not callable(each) and not isinstance(each, RewriterSpec):
            raise ConfigError(
                f"rewrite = {each!r}; expected functions of Steps that return Steps, or objects of classes derived "
                "from etude.rewrite.Rewriter, such as RND()."
            )
    return found


def rewriters_for(
    given: tuple[Any, ...], context: TrainingContext, make_engine: Callable[[Agent, int], Engine]
) -> Rewriters | None:
    """What rewrites the steps of a run; None where nothing does. ConfigError where the agent learns from other steps.

    make_engine: an engine of the run's framework for another agent and a seed.
    """
    if not given:
        return None
    check_rewriting(kind_of(context.agent), context)
    spaces, names, found = context.engine.spaces, _names(given), {}
    for number, (name, each) in enumerate(zip(names, given, strict=True)):
        if isinstance(each, RewriterSpec):
            seed = int(generator(context.setup.seed, "rewriter", number).integers(2**31))
            each = each.build(RewriterContext(name, spaces, context.count, seed, make_engine))
        found[name] = each
    return Rewriters(found, spaces)


def described(given: tuple[Any, ...]) -> list[Any]:
    """Rewriters as plain data; those that etude does not know, by their names alone."""
    return [
        to_json(each) if type(each) in SPECS else {"given": name}
        for name, each in zip(_names(given), given, strict=True)
    ]


def rewriters_from(described: dict[str, Any]) -> tuple[Any, ...]:
    """The rewriters in a run's description; ConfigError where they have to be given again."""
    plain = Stored(described.get("rewrite", []), "description/rewrite").items()
    if own := [each.table()["given"].text() for each in plain if "given" in each.table()]:
        raise ConfigError(
            f"This run rewrites its steps with {', '.join(own)}, which is not in its checkpoints: give rewrite=[...] "
            "again, all of it and in the same order, or rewrite=None to go on without."
        )
    return tuple(_spec_from(each) for each in plain)


def _spec_from(saved: Stored) -> Any:
    found = from_saved(Any, saved, (*SPECS, Linear))
    if not isinstance(found, RewriterSpec):
        saved.refuse("a rewriter")
    return found


def _names(given: Iterable[Any]) -> list[str]:
    """A name for each rewriter; several of one name are numbered."""
    names: list[str] = []
    for each in given:
        base = name = each.name if isinstance(each, RewriterSpec) else getattr(each, "__name__", type(each).__name__)
        number = 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


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
    """What trains an agent. learner, collecting: the two halves of the loop."""

    learner: Any  # a `RunLearning`, with what its kind of learning has
    collecting: Collection
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
    """The parts of a run. explorer: the one that the user gave. rewrite: rewriters, from `as_rewriters`."""
    kind, agent, engine = kind_of(context.agent), context.agent, context.engine
    rewriters = rewriters_for(rewrite, context, functools.partial(_engine_beside, context))
    learner, log_prob = kind.make_learner(context, rewriters), LogProbRequest(context.group)

    def make_explorer(total: int) -> Explorer:
        found = explorer_for(agent, engine.spaces, explorer, total, context.count)
        return with_log_prob(found) if log_prob.asked else found

    make_rollout = functools.partial(kind.rollout, context) if kind.steps_environments else None
    collecting = Collection(make_explorer, make_rollout, engine.spaces, context.count, context.setup.seed)
    return RunParts(learner, collecting, log_prob)


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
    kind_of(agent).check(agent, setup)
    if setup.keep_info:
        check_collects_steps(agent, f"keep_info = {setup.keep_info!r}")
    preset = presets.lookup(algorithm, environment) if isinstance(environment, str) else None
    count = environment_count(agent, setup, None if preset is None else preset.environments)
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


class Assembled(NamedTuple):
    """The parts that one agent is trained with. `protocols` describes the first five.

    learner: adds steps to the replay and takes the gradient steps that are due; it holds the replay, the engine and the
    normalisers.
    """

    agent: Agent
    engine: Engine
    replay: Replay
    explorer: Explorer
    rollout: Rollout
    learner: Learner


def assemble(
    algorithm: str | Agent,
    env: Any,
    *,
    total: int,
    config: Any = None,
    data: Any = None,
    explorer: Explorer | None = None,
    setup: Setup | None = None,
    **hyperparameters: Any,
) -> Assembled:
    """The parts that `Run` would train with, for a loop of one's own. Close the rollout in the end.

    total: environment steps that schedules are stretched over. setup: seed, engine, environments, workers and what else
    `Setup` has. Other arguments: see `Run`. Raises ConfigError for algorithms that learn from recorded data alone.
    """
    config = with_hyperparameters(algorithm, env, config, hyperparameters)
    given = environment_for(env, None, None, None)
    name, agent, environment, spaces, _ = fitted(given, lambda spaces: agent_for(algorithm, given, config, spaces))
    _require_rollout(agent)
    agent, sources = data_for(data, agent, environment, spaces)
    _require_rollout(agent)  # others too learn from recorded data alone where there is no more
    exploration.check(agent, explorer, spaces)
    setup, kind = with_environments(setup or Setup(), name, agent, env), kind_of(agent)
    engine = engine_for(agent, spaces, setup)
    context = context_for(agent, engine, environment, setup, sources)
    learner: Any = kind.make_learner(context)
    learner.progress.total = total
    explorer = exploration.explorer_for(agent, spaces, explorer, total, context.count)
    rollout = kind.rollout(context, explorer)
    rollout.load(*learner.exploring_policy())
    return Assembled(agent, engine, learner.replay, explorer, rollout, learner)


def _require_rollout(agent: Agent) -> None:
    if not kind_of(agent).steps_environments:
        raise ConfigError(f"{type(agent).__name__} learns from recorded data alone: there is no rollout. Use a Run.")
