"""What every kind of learning has in common, what it makes its parts from, and recorded transitions as a replay.

Defaults are those of learning from steps that one policy collects.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import etude.engines as engines
from etude.agent import Agent
from etude.base import trees
from etude.base.cores import Busy
from etude.base.errors import ConfigError
from etude.base.seeding import GroupSeeds, RunSeed, generator
from etude.base.spaces import Space, Spaces, zeros
from etude.config import Config, GamesConfig
from etude.engines.numpy import NumpyEngine
from etude.engines.replicas import Replicas
from etude.engines.stacked import Perturbed
from etude.envs import choose_vectorization, make_environments, name_of
from etude.envs.make import Vectorization, functional_of
from etude.explore import (
    AdjustedExplorer,
    ByAgent,
    CorrelatedSample,
    EpsilonGreedy,
    GaussianNoise,
    PerActorEpsilonGreedy,
    PerActorGaussianNoise,
    Sample,
    StateDependentSample,
)
from etude.multi_agent.policies import MultiAgent
from etude.networks.tokens import tokens_of
from etude.offline.loading import RecordedData
from etude.protocols import Engine, Environments, Explorer, ProcessGroup, Replay, Rollout
from etude.replay import Buffer, MixedReplay, OneStep, RecordedTerms, Ring, Uniform
from etude.rewrite import Rewriters
from etude.rollout import (
    FollowingActor,
    InProcess,
    LockstepPool,
    Pool,
    PoolOptions,
    SharedRollout,
    buffer_size,
    own_environments,
)
from etude.serving import clients_of
from etude.training.description import Execution
from etude.training.learner import Adapting, GradientSource, Learner
from etude.training.loop import RunLearning
from etude.training.schedule import UpdateSchedule
from etude.training.sources import SAMPLER, Sources
from etude.workers.process import ProcessBackend
from etude.workers.ray import RayBackend


@dataclass(frozen=True)
class TrainingContext:
    """One agent, its engine and its environment, and the settings of their run.

    environment: as `Run` takes it. execution: with the number of environments. data: recorded episodes and their
    shares, for the kinds that use them. terms: those that terms of a loss read, by the term's name.
    group: the processes that train the run, where there are several.
    """

    agent: Agent
    engine: Engine
    environment: Any
    execution: Execution
    data: Sources | None = None
    terms: dict[str, RecordedData] = field(default_factory=dict)
    group: ProcessGroup | None = None

    @property
    def count(self) -> int:
        """The number of environments."""
        assert self.execution.environments is not None
        return self.execution.environments

    @property
    def team(self) -> tuple[int, ...]:
        """The shape of one step's rewards: () for one agent, (agents,) for several."""
        agents = self.engine.spaces.agents
        return () if agents is None else (len(agents),)

    @property
    def run_seed(self) -> RunSeed:
        """What the seeds of episodes and of exploration are derived from."""
        config, seed = self.agent.config, self.execution.seed
        return GroupSeeds(seed, config.group_size) if isinstance(config, GamesConfig) else seed

    @property
    def actor_priorities(self) -> bool:
        """Whether actors send errors of what they collected, as the extra `priority`."""
        return self.engine.exportable and getattr(self.agent.config, "actor_priorities", False)

    def recorded(self) -> RecordedData:
        """The data, for kinds that need one source."""
        assert self.data is not None and self.data.single is not None
        return self.data.single


@dataclass(frozen=True)
class BufferRequest:
    """What a buffer of a replay is for.

    capacity: rows of all environments. environments: that its rows come from; recorded episodes follow each other as
    those of one. source: the number of the recorded data in a mixture; None: the only buffer, or what is collected.
    recorded: whether its rows are recorded ones.
    """

    capacity: int
    environments: int
    source: int | None
    recorded: bool

    def stream(self, name: str) -> str:
        """The name of a generator of this buffer."""
        return name if self.source is None else f"{name} {self.source}"

    def folder(self, parent: Path | str | None) -> Path | str | None:
        """Where its ring is memory-mapped."""
        return parent if parent is None or self.source is None else str(Path(parent) / f"recorded_{self.source}")


def replay_for(context: TrainingContext, capacity: int, make: Callable[[BufferRequest], Buffer]) -> Replay:
    """The replay of a run: one buffer, or a `MixedReplay` of several sources. capacity: for what is collected."""
    collected = BufferRequest(capacity, context.count, None, recorded=False)
    if context.data is None:
        return make(collected)
    data, shares = context.data, dict(context.data.shares)
    alone = data.single is not None
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    buffers = {
        name: make(BufferRequest(len(recorded) + 1, 1, None if alone else i, recorded=True))
        for i, (name, recorded) in enumerate(data.recorded.items())
    }
    if data.online:
        buffers[SAMPLER], shares[SAMPLER] = make(collected), data.online
    if len(buffers) == 1:
        return next(iter(buffers.values()))
    return MixedReplay(buffers, shares, generator(context.execution.seed, "mixture"), SAMPLER if data.online else None)


def store_recorded(learner: Learner, context: TrainingContext) -> None:
    """Put the recorded data of a new run into its replay, and into its normalisers. What a checkpoint holds is restored
    with it."""
    for name, recorded in (context.data.recorded if context.data is not None else {}).items():
        if (steps := recorded.steps()) is not None:
            replay = learner.replay
            buffer: Any = replay.buffers[name] if isinstance(replay, MixedReplay) else replay
            read = {name: values for name, values in steps.extras.items() if name in buffer.ring.extras}
            learner.store(replace(steps, extras=read), buffer)
            learner.follow_moments(steps)


def recorded_buffer(context: TrainingContext, data: RecordedData, stream: str) -> Buffer:
    """A replay of single transitions of recorded data, empty where a checkpoint holds them. stream: the name of the
    generator that samples are drawn with."""
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    ring, view = Ring(context.engine.spaces, len(data) + 1), OneStep(context.agent.config.gamma)
    buffer = Buffer(ring, Uniform(), view, generator(context.execution.seed, stream), fixed=True)
    if (steps := data.steps()) is not None:
        buffer.add(steps)
    return buffer


EXPLORED_BY: dict[str, list[str]] = {
    "values": ["epsilon"],
    "actions": ["exploration_noise", "random_steps"],
    "distribution": [],
}
"""The config fields that describe exploration, by what an agent acts by."""


class LearningKind:
    """A kind of learning: what a batch holds, where it comes from, and when it is learned from.

    `Agent.learns_from` names one of `KINDS`, or is an object of a class derived from this one (or from another kind):
    write `replay` and `update_schedule`, and whatever else differs. A kind holds no state.

    name: what `learns_from` is for agents of etude's own kinds, and what messages say that is learned from.
    config: the base of the configs of its agents.
    environments: how many are stepped in parallel where neither the user nor a preset says.
    multi_agent: whether agents for several agents of one environment can learn this way.
    log_prob: whether the replay needs the log probabilities of sampled actions, as the extra `log_prob`.
    uses_data: whether recorded data is needed. takes_data: whether it may be given. replays_data: whether it goes into
        the replay.
    steps_environments: False for learning from recorded data alone. All steps of such a run are gradient steps.
    collects_steps: whether rollouts return steps, and not gradients or nothing. returns_gradients: whether they return
        gradients of losses.
    compiles: whether a compiled program may collect.
    adjusts: the sizes of the replay that rules of a config may change (see `etude.adapt`).
    whole_rollouts: whether what is collected waits until all of it is there that a learning phase takes, so that a
        rollout that is collected in parts is rewritten, normalised and learned from as one in a piece.
    whole_games: whether an example is a whole game of tokens.
    one_by_one: whether environments are stepped one by one and not by a native simulator, unless the user asks for it.
    shares_replay: whether runs may store into one replay, from which each learns.
    refuses: what a run of such an agent cannot have, "rewrite", "overlap" or "native" environments, and the message
        that says why; {agent} stands for the agent's name.
    """

    name: str = "steps"
    config: ClassVar[type[Config]]
    environments: ClassVar[int] = 8
    multi_agent: ClassVar[bool] = False
    log_prob: ClassVar[bool] = False
    uses_data: ClassVar[bool] = False
    takes_data: ClassVar[bool] = False
    replays_data: ClassVar[bool] = False
    steps_environments: ClassVar[bool] = True
    collects_steps: ClassVar[bool] = True
    returns_gradients: ClassVar[bool] = False
    whole_rollouts: ClassVar[bool] = False
    whole_games: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    shares_replay: ClassVar[bool] = False
    adjusts: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[Mapping[str, str]] = {}

    def check(self, agent: Agent, execution: Execution) -> None:
        """Raise ConfigError where a run of this kind cannot be carried out like this."""

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        """The kind of learning of this agent with this data; ConfigError where they do not go together."""
        return self

    # -- what learning is made of --------------------------------------------------------------------------------------

    def make_engine(
        self, agent: Agent, spaces: Spaces, execution: Execution, replicas: Replicas | None = None
    ) -> Engine:
        """What evaluates and trains the agent. replicas: the devices, where they are several."""
        return engines.create(
            execution.engine, agent, spaces, seed=execution.seed, device=replicas or execution.device,
            compiled=execution.compiled, busy=Busy(execution.workers, execution.workers if execution.overlap else 0),
        )  # fmt: skip

    def replay(self, context: TrainingContext) -> Replay:
        """Stores what is collected, and samples batches from it."""
        raise NotImplementedError

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        """When how many gradient steps on batches of which size are due. count: environments that are collected from in
        one call."""
        raise NotImplementedError

    def gradients(self, context: TrainingContext) -> GradientSource:
        """Where the gradients of a learning phase come from."""
        return lambda batches, hyper, gradient_steps: context.engine.learn(batches, hyper)

    def make_learner(self, context: TrainingContext, rewriters: Rewriters | None = None) -> RunLearning:
        """What stores collected steps and learns from them. rewriters: what changes them before they are stored."""
        agent, engine, config = context.agent, context.engine, context.agent.config
        if context.terms and self.steps_environments and (self.returns_gradients or context.actor_priorities):
            raise ConfigError(
                f"{agent} has a loss that reads recorded data ({', '.join(context.terms)}), and its "
                "workers compute losses, without this data. Use an algorithm whose losses the learner alone computes, "
                "or leave actor_priorities off."
            )
        count = 1 if self.returns_gradients else context.count  # environments that are collected from in one call
        schedule_for, replay = functools.partial(self.update_schedule, count=count), self.replay(context)
        buffers = {name: recorded_buffer(context, data, f"recorded {name}") for name, data in context.terms.items()}
        learner = Learner(
            agent, engine, replay, schedule_for(config), self.gradients(context),
            functools.partial(self._read_by_acting, context), example_bytes(self, context), count,
            context.execution.seed,
            RecordedTerms(buffers, {name: context.agent.recorded[name].batch_size for name in buffers}),
            Adapting(config, engine, schedule_for, replay, self.adjusts) if config.adapt else None,
            self.whole_rollouts, self.steps_environments, rewriters,
        )  # fmt: skip
        explored = self.steps_environments and context.execution.explorer is None
        unused = set() if explored else {*EXPLORED_BY.get(agent.acts_by, ())}
        learner.scheduled -= unused if getattr(config, "priority_exponent", 1.0) else {*unused, "importance_exponent"}
        if self.replays_data:
            store_recorded(learner, context)
        return learner

    def _read_by_acting(self, context: TrainingContext) -> tuple[str, ...]:
        """The names of the weights that rollouts need; none where the engine itself acts."""
        if self.returns_gradients:
            return tuple(context.engine.layout.initial)
        return self.actor(context)().read_by_acting() if context.engine.exportable else ()

    # -- collecting ----------------------------------------------------------------------------------------------------

    def explorer(self, agent: Agent, spaces: Spaces, total: int, count: int) -> Explorer:
        """The explorer that the agent's config describes; ConfigError where it describes none.

        total: environment steps that schedules are stretched over. count: environments.
        """
        if isinstance(agent, MultiAgent) and spaces.agents is not None:
            actions = [own.action for own in spaces.agents.values()]
            return ByAgent([_described_explorer(agent, each, total, count, self.log_prob) for each in actions], actions)
        return _described_explorer(agent, spaces.action, total, count, self.log_prob)

    def actor(self, context: TrainingContext, collecting: bool = True) -> Callable[[], Any]:
        """Makes what acts in NumPy, in this process or in another; it is pickled. collecting: in rollouts."""
        return functools.partial(NumpyEngine, context.agent, context.engine.spaces)

    def rollout(self, context: TrainingContext, explorer: Explorer) -> Rollout:
        """Collects, in this process or in workers. Where NumPy cannot act, the engine does, in this process."""
        if (group := context.group) is None:
            return self._own_rollout(context, explorer, range(context.count))
        indices = own_environments(context.count, group.rank, group.size)
        if clients_of(context.environment) is not None:
            raise ConfigError("Clients play in one process: train on one device.")
        return SharedRollout(self._own_rollout(context, explorer, indices), context.count, group)

    def _own_rollout(self, context: TrainingContext, explorer: Explorer, indices: range) -> Any:
        """Collects from the environments with these indices, those of this process."""
        engine, execution, recorded = context.engine, context.execution, context.agent.state_recorded
        seed: Any = context.run_seed
        priorities = context.actor_priorities
        if (functional := compiled_environment(self, context, explorer)) is not None:
            from etude.training.compiled import CompiledEnvironments, CompiledRollout  # brings JAX

            own: Any = engine
            compiled = CompiledEnvironments(own, functional, explorer, seed, indices, execution.keep_info, recorded)
            return CompiledRollout(own, compiled, explorer, seed)
        acting_here: Any = Perturbed(engine) if engine.layout.noisy else engine
        make_actor = self.actor(context)
        if isinstance(explorer, AdjustedExplorer):
            acting_here = FollowingActor(acting_here, explorer.follow)
            make_actor = functools.partial(FollowingActor.made, make_actor, explorer.follow)
        if execution.workers == 0:
            actor = make_actor() if engine.exportable else acting_here
            if (clients := clients_of(context.environment)) is not None and not execution.keep_info:
                from etude.serving.rollout import ClientRollout  # brings asyncio, which no other run needs

                return ClientRollout(clients, engine.spaces, len(indices), actor, explorer, seed, priorities, recorded)
            make = environment_maker(self, context)
            return InProcess(make(np.array(indices)), actor, explorer, seed, priorities, recorded)
        make = environment_maker(self, context)
        if execution.overlap and not engine.exportable:
            raise ConfigError(
                "overlap=True needs a policy that NumPy can compute in the workers; convolutions and modules of your "
                "own act in this process, in step with the workers. Leave overlap off."
            )
        if execution.overlap and "overlap" in self.refuses:
            raise ConfigError(self.refuses["overlap"].format(agent=context.agent))
        if execution.ray is not None and not engine.exportable:
            raise ConfigError(
                f"ray = {execution.ray!r} needs a policy that NumPy can compute in the actors; convolutions and "
                "modules of your own act in this process. Leave ray out: workers are then processes of this machine."
            )
        buffer = buffer_size(engine.spaces, len(indices), execution.workers)
        options = PoolOptions(
            overlap=execution.overlap, buffer=buffer, actor_priorities=priorities, state_recorded=recorded,
            backend=backend_for(execution),
        )  # fmt: skip
        if engine.exportable:
            return Pool(make, make_actor, explorer, seed, indices, execution.workers, options)
        return LockstepPool(make, acting_here, explorer, seed, indices, execution.workers, options)


def _described_explorer(agent: Agent, action: Space, total: int, count: int, log_prob: bool) -> Explorer:
    """The explorer that an agent's config describes for one agent with these actions; see `LearningKind.explorer`."""
    config, acts_by = agent.config, agent.acts_for(action)
    alpha = getattr(config, "exploration_exponent", 0.0)  # of off-policy configs
    if agent.acts_by == "distribution" and alpha:
        raise ConfigError(
            f"{type(config).__name__}: exploration_exponent = {alpha}, but {agent} samples its policy, "
            "in all environments alike. Leave it at 0."
        )
    if agent.acts_by not in EXPLORED_BY:
        raise ConfigError(f"{agent}: acts_by = {agent.acts_by!r}; expected one of {', '.join(EXPLORED_BY)}.")
    if missing := set(EXPLORED_BY[agent.acts_by]) - {field.name for field in fields(config)}:
        raise ConfigError(
            f"{agent} acts by {agent.acts_by}, which are explored as the config says in "
            f"{', '.join(sorted(missing))}; {type(config).__name__} lacks it. Add the field, or give explorer=."
        )
    if acts_by == "values":
        if alpha:
            return PerActorEpsilonGreedy(config.epsilon, alpha, count, total)
        return EpsilonGreedy(config.epsilon, total=total)
    if acts_by == "actions":
        noise, random_steps = config.exploration_noise, config.random_steps
        if alpha:
            return PerActorGaussianNoise(noise, alpha, count, total, random_steps)
        return GaussianNoise(noise, total=total, random_steps=random_steps)
    if config.sample_correlation:
        return CorrelatedSample(config.sample_correlation, math.prod(action.shape or ()))
    if config.gsde_features:
        size = math.prod(action.shape or ())
        return StateDependentSample(config.gsde_features, size, config.gsde_sample_every, log_prob)
    return Sample(log_prob=log_prob)


def example_bytes(kind: LearningKind, context: TrainingContext) -> int:
    """Bytes of one example in a batch."""
    spaces = context.engine.spaces
    if kind.whole_games:
        _, window = tokens_of(spaces.observation)
        return window.context * (24 + (len(window.vocabulary) if spaces.masked else 0))
    transition = 2 * trees.count_bytes(zeros(spaces.observation)) + trees.count_bytes(zeros(spaces.action)) + 24
    if kind.uses_data and kind.steps_environments:
        transition *= 2  # the expert's step comes with the policy's
    return transition * context.agent.config.example_length


def compiled_environment(kind: LearningKind, context: TrainingContext, explorer: Explorer) -> Any:
    """The functional environment whose steps a compiled program is to collect; None where none was asked for.
    ConfigError where it cannot."""
    engine, execution, name = context.engine, context.execution, name_of(context.environment)
    if execution.vectorization != "compiled":
        return None
    functional = functional_of(context.environment)
    reasons = {
        f"{name} is no class derived from FunctionalEnvironment, or is wrapped": functional is None,
        f"engine = {engine.name!r}, not jax": engine.name != "jax",
        "it is for one process and one device": execution.workers or execution.devices or context.group is not None,
        f"{context.agent} learns from {kind.name}": not kind.compiles,
        "actors compute priorities: set actor_priorities = False": context.actor_priorities,
        f"it cannot call {explorer!r}": not isinstance(explorer, Sample | EpsilonGreedy | GaussianNoise)
        or engine.spaces.agents is not None,
    }
    if reason := next((text for text, holds in reasons.items() if holds), None):
        raise ConfigError(f"vectorization = 'compiled': {reason}. Leave it on auto, or use loop.")
    return functional


def vectorization_for(kind: LearningKind, context: TrainingContext) -> Vectorization:
    """How environments are stepped: "loop" or "native". Decided for all of them: a worker would decide for its own
    part."""
    wanted = context.execution.vectorization
    if kind.one_by_one and wanted == "auto":
        wanted = "loop"
    found = choose_vectorization(context.environment, context.count, wanted)
    if found == "native" and "native" in kind.refuses:
        raise ConfigError(kind.refuses["native"].format(agent=context.agent))
    return found


def environment_maker(kind: LearningKind, context: TrainingContext) -> Callable[[Any], Environments]:
    """Makes the environments with these numbers, in this process or in a worker; it is pickled."""
    if clients_of(context.environment) is not None:
        raise ConfigError(
            "Clients play in this process: leave workers and keep_info out, and take an algorithm that learns from "
            f"steps of one policy; {context.agent} collects in its own way."
        )
    return functools.partial(
        make_environments,
        context.environment,
        run_seed=context.run_seed,
        vectorization=vectorization_for(kind, context),
        keep_info=context.execution.keep_info,
    )


def check_rewriting(kind: LearningKind, context: TrainingContext) -> None:
    """Raise ConfigError where what is learned from is not what rewriters return."""
    name = str(context.agent)
    if "rewrite" in kind.refuses:
        raise ConfigError(kind.refuses["rewrite"].format(agent=name))
    if not kind.collects_steps:
        raise ConfigError(
            f"rewrite= changes collected steps before they are learned from; {name} collects none: it learns from "
            "recorded data, or from gradients that workers compute. Leave it out, or wrap the environment."
        )
    if context.actor_priorities:
        raise ConfigError(
            "rewrite= changes rewards after actors have computed initial priorities of them, actor_priorities = True. "
            f"Give {name} actor_priorities=False: new steps then get the largest priority so far."
        )
    if context.data is not None:
        raise ConfigError(
            "rewrite= changes collected steps, and the recorded ones in data= stay as they are: one batch would hold "
            "both. Wrap the environment, and record the data in it; or leave one of them out."
        )
    if (hindsight := getattr(context.agent.config, "hindsight", "none")) != "none":
        raise ConfigError(
            f"rewrite= changes rewards that hindsight = {hindsight!r} computes again for other goals. Leave one of "
            "them off, or wrap compute_reward of the environment."
        )


def check_shared_replay(kind: LearningKind, agent: Agent) -> None:
    """Raise ConfigError where runs of such an agent cannot store into one replay."""
    name, config = str(agent), agent.config
    if not kind.shares_replay:
        raise ConfigError(
            f"shared_replay = True, but {name} learns from {kind.name}, which only the run that collected them can "
            "learn from. Leave it off, or take an off-policy algorithm without recurrent state."
        )
    if (exponent := config.priority_exponent) != 0.0:
        raise ConfigError(
            f"shared_replay = True, but {name} draws by priorities, which are errors of its own networks: "
            f"priority_exponent = {exponent}. Set it to 0, or leave shared_replay off."
        )
    if any(rule.hyperparameter in kind.adjusts for rule in config.adapt):
        raise ConfigError(
            f"shared_replay = True, but a rule of {name} changes buffer_size, which would forget what the others learn "
            "from. Leave the rule out, or leave shared_replay off."
        )


def backend_for(execution: Execution) -> ProcessBackend:
    """Where the workers of a run are."""
    return ProcessBackend() if execution.ray is None else RayBackend(execution.ray, execution.workers)
