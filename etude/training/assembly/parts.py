"""The parts of a run that its kind of learning makes, with its rewriters and recorded data; by themselves, for a loop
of one's own, too."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from typing import Any, NamedTuple

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import ALGORITHMS, find
from etude.base.errors import ConfigError
from etude.base.events import Started
from etude.base.spaces import Spaces
from etude.engines.replicas import Replicas
from etude.envs import Translation, action_space_of
from etude.explore.explorer import with_log_prob
from etude.offline.loading import load_data
from etude.protocols import Engine, Explorer, ProcessGroup, Replay, Rollout
from etude.replay import Buffer, NStep, OneStep, Uniform
from etude.training.assembly import exploration
from etude.training.assembly.agents import check_collects_steps, fitted, takes_data
from etude.training.assembly.described import agents_for
from etude.training.assembly.exploration import as_rewriters, explorer_for, rewriters_for
from etude.training.assembly.replicas import check_divisible, divided_environments, replicas_for
from etude.training.description import Execution, RunDescription, advise, forms_of_run
from etude.training.kinds import LearningKind, TrainingContext, environment_count, kind_for, kind_of
from etude.training.learner import Learner
from etude.training.loop import Collection
from etude.training.sources import Sources, sources_for


class _LogProbRequest:
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
    """What trains an agent. learner, collection: the two halves of the loop. translation: between the units of the
    environment and those of the agent. rewrite: the rewriters that were given."""

    algorithm: str
    context: TrainingContext
    translation: Translation
    rewrite: tuple[Any, ...]
    learner: Any  # a `RunLearning`, with what its kind of learning has
    collection: Collection
    log_prob: _LogProbRequest


def _context_for(made: RunDescription) -> tuple[str, TrainingContext, Translation]:
    """(the name of the algorithm, what the parts of a run are made from, what translates between the units of the
    environment and those of the agent)."""
    given = made.execution
    environment = made.environment.configured()
    algorithm, agent, environment, spaces, translation = fitted(environment, functools.partial(agents_for, made))
    agent, sources = data_for(made.data, agent, environment, spaces)
    exploration.check(agent, given.explorer, spaces)
    replicas = replicas_for(agent, given)
    execution = with_environments(given, algorithm, agent, made.named_environment, replicas)
    engine = kind_of(agent).make_engine(agent, spaces, execution, replicas)
    terms = {name: load_data(own.data, spaces, action_space_of(environment)) for name, own in agent.recorded.items()}
    group = None if replicas is None else replicas.group
    context = TrainingContext(agent, engine, environment, execution, sources, terms, group)
    return algorithm, context, translation


def run_parts(made: RunDescription) -> RunParts:
    """The parts of a run: its environment, spaces, agent, engine, replay, rollout and learner, as a loop takes them."""
    algorithm, context, translation = _context_for(made)
    kind, agent, engine = kind_of(context.agent), context.agent, context.engine
    rewrite = as_rewriters(made.execution.rewrite)

    def make_engine(other: Agent, seed: int) -> Engine:
        execution = dataclasses.replace(context.execution, seed=seed, engine=engine.name, compiled=False)
        return kind.make_engine(other, engine.spaces, execution)

    rewriters = rewriters_for(rewrite, context, make_engine)
    learner, log_prob = kind.make_learner(context, rewriters), _LogProbRequest(context.group)

    def make_explorer(total: int) -> Explorer:
        found = explorer_for(agent, engine.spaces, made.execution.explorer, total, context.count)
        return with_log_prob(found) if log_prob.asked else found

    make_rollout: Any = functools.partial(kind.rollout, context) if kind.steps_environments else None
    if context.execution.fused:
        make_rollout = functools.partial(_fused_rollout, kind, context, learner)
    collection = Collection(make_explorer, make_rollout, engine.spaces, context.count, context.execution.seed)
    return RunParts(algorithm, context, translation, rewrite, learner, collection, log_prob)


def _fused_rollout(kind: LearningKind, context: TrainingContext, learner: Any, explorer: Explorer) -> Rollout:
    """Of a run; ConfigError, which names it, where something of the run does not fit into its program."""
    engine: Any = context.engine
    config, layout, name = context.agent.config, engine.layout, str(context.agent)
    reasons = {
        f"{name} learns from {kind.name}": kind.name not in ("advantages", "transitions")
            or not isinstance(learner, Learner),
        "it samples a replay of transitions uniformly: leave priorities, hindsight and data out":
            kind.name == "transitions" and not (
                isinstance(replay := learner.replay, Buffer) and type(replay.selector) is Uniform
                and type(replay.view) in (OneStep, NStep)
            ),
        "networks are reset between phases: leave reset_every out": getattr(config, "reset_every", None) is not None,
        "running moments normalise observations, and follow each rollout: set normalize_observation = False":
            config.normalize_observation,
        "a running scale normalises rewards: set normalize_reward = False": config.normalize_reward,
        "rules adapt hyperparameters: leave adapt out": bool(config.adapt),
        "rewrite changes what is collected (curiosity, rewards of one's own): leave it out":
            bool(context.execution.rewrite),
        "a loss reads recorded data": bool(context.terms),
        f"{', '.join(layout.untrained)} would change between phases, by no gradient": bool(layout.untrained),
        "layers draw noise": bool(layout.noisy),
    }  # fmt: skip
    if reason := next((text for text, holds in reasons.items() if holds), None):
        raise ConfigError(f"fused = True: {reason}; or leave fused off.")
    from etude.training.compiled import FusedRollout  # brings JAX

    rollout: Any = kind.rollout(context, explorer)
    return FusedRollout(engine, rollout.compiled, explorer, context.run_seed, learner)


def with_environments(
    execution: Execution, algorithm: str, agent: Agent, environment: Any, replicas: Replicas | None = None
) -> Execution:
    """With the number of environments that are stepped in parallel: where nobody says how many, at least one in each
    process. ConfigError where an agent of this kind cannot be trained with it."""
    kind_of(agent).check(agent, execution)
    if execution.keep_info:
        check_collects_steps(agent, f"keep_info = {execution.keep_info!r}")
    preset = presets.lookup(algorithm, environment) if isinstance(environment, str) else None
    count = environment_count(agent, execution, None if preset is None else preset.environments)
    if replicas is not None and kind_of(agent).steps_environments:
        count = divided_environments(execution, count, replicas)
    check_divisible(agent, count, replicas)
    return dataclasses.replace(execution, environments=count)


def recorded_spaces(context: TrainingContext) -> Spaces:
    """The spaces of recordings of a run: actions as the environment takes them."""
    return dataclasses.replace(context.engine.spaces, action=action_space_of(context.environment))


def data_for(data: Any, agent: Agent, env: Any, spaces: Spaces) -> tuple[Agent, Sources | None]:
    """(the agent, with the kind of learning that it has on this data; what its batches are drawn from). None for an
    agent that learns from its environment alone. ConfigError where data and agent do not go together."""
    kind, name = kind_of(agent), str(agent)
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
        raise ConfigError("data= takes episodes of one agent; this environment has several. Leave data out.")
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
    algorithm: str | Agent, env: Any, *, total: int, execution: Execution | None = None, **further: Any
) -> Assembled:
    """The parts that `Run` would train with, for a loop of one's own. Close the rollout in the end.

    total: environment steps that schedules are stretched over. execution, further: see `Run`. Raises ConfigError for
    algorithms that learn from recorded data alone.
    """
    if "setup" in further:
        execution = further.pop("setup")
        warnings.warn("assemble(setup=...) goes in the next version. Write execution=etude.Execution(...).",
                      DeprecationWarning, stacklevel=2)  # fmt: skip
    advise("assemble", forms_of_run(further))
    made = RunDescription.of(algorithm, env, {"execution": execution, **further})
    if not isinstance(algorithm, Agent):
        agent_class, config_class = find(algorithm)
        _require_rollout(kind_for(agent_class.__name__, agent_class.learns_from, config_class), agent_class.__name__)
    _, context, _ = _context_for(made)
    kind, agent = kind_of(context.agent), context.agent
    _require_rollout(kind, str(agent))  # others too learn from recorded data alone where there is no more
    learner: Any = kind.make_learner(context)
    learner.progress.total = total
    explorer = explorer_for(agent, context.engine.spaces, made.execution.explorer, total, context.count)
    rollout = kind.rollout(context, explorer)
    rollout.load(*learner.exploring_policy())
    return Assembled(agent, context.engine, learner.replay, explorer, rollout, learner)


def _require_rollout(kind: LearningKind, name: str) -> None:
    if not kind.steps_environments:
        raise ConfigError(f"{name} learns from recorded data alone: there is no rollout. Use a Run.")
