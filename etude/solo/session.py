"""The session of an agent of one's own, kept from one call of `train` to the next: its replay, engine and environments,
and how they are made from its flags."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import etude.engines as engines
from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.errors import CheckpointError, ConfigError, EtudeError, NumericalError
from etude.base.seeding import generator
from etude.base.spaces import Discrete, zeros
from etude.envs import RawActions
from etude.explore import AsIs, ByAgent, Each
from etude.protocols import Explorer, ProcessGroup, Rollout
from etude.replay import Buffer, Hindsight, NStep, OneStep, Ring, Triplets
from etude.replay.buffer import View
from etude.replay.ring import Extras
from etude.rollout import BroadcastRollout, InProcess, Pool, PoolOptions, acting_in_process, buffer_size
from etude.rollout.state import check_rollout
from etude.solo.adjusting import Adjuster, Knobs
from etude.solo.callbacks import EndTraining
from etude.solo.conversion import Conversion, LossArguments, conversion_for, is_goal_space, of_each_time
from etude.solo.engines import AgentInterface, UserAgentEngine, check_networks, make_engine, numbers, take_numbers
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.irl import reward_source
from etude.solo.learner import EpisodeLearner, acting_in_worker, regime_of
from etude.solo.settings import Options, Settings
from etude.training.loop import Collection


@dataclass(frozen=True)
class Transitions:
    """view: makes batches. convert: from their observations to those that `__call__` gets."""

    view: View
    convert: Conversion


def transitions_of(
    agent: Any, settings: Settings, described: EnvironmentDescription, gamma: float, seed: int
) -> Transitions:
    """What the settings ask for; ConfigError where agent or environment do not fit."""
    convert = conversion_for(described.spaces.observation)
    if settings.TRL:
        return Transitions(Triplets(gamma, rng=generator(seed, "triplets")), of_each_time(convert))
    view: OneStep | NStep = OneStep(gamma)
    if settings.num_steps is not None:
        view = _of_several_steps(agent, settings.num_steps, gamma)
    if settings.HER:
        return Transitions(_relabelled(agent, view, described, seed), convert)
    return Transitions(view, convert)


def _of_several_steps(agent: Any, steps: int, gamma: float) -> NStep:
    if steps > 1 and not hasattr(agent, "gamma"):
        raise ConfigError(
            f"num_steps = {steps} sums discounted rewards: give {type(agent).__name__} an attribute gamma."
        )
    return NStep(gamma, steps)


def _relabelled(agent: Any, view: OneStep | NStep, described: EnvironmentDescription, seed: int) -> Hindsight:
    if not is_goal_space(described.spaces.observation):
        raise ConfigError(
            "HER=True needs observations with the keys observation, achieved_goal and desired_goal, as those of "
            f"Gymnasium-Robotics; {described.name} has others. Return such a dict from the environment."
        )
    if agent.reward_done_func is None:
        raise ConfigError(
            f"HER=True needs {type(agent).__name__}.reward_done_func(self, next_goal, goal), which returns what a step "
            "earns and whether it ends the episode."
        )
    return Hindsight(view, agent.reward_done_func, generator(seed, "hindsight"))


EXAMPLES = {"keras": "keras.optimizers.Adam()", "torch": "torch.optim.Adam(agent.param)"}


@dataclass(frozen=True, eq=False)
class SessionKey:
    """What a session is built from; where nothing of it changes, training continues with the same session."""

    settings: Settings
    environments: Any  # the agent's `env`
    count: int
    optimizers: tuple[Any, ...]
    jit_compile: bool
    strategy: Any = None  # of tf.distribute

    @classmethod
    def of(cls, agent: Any, settings: Settings, options: Options, strategy: Any) -> SessionKey:
        """The key for `train` with these options; ConfigError where the agent lacks what training needs."""
        _check_agent(agent)
        environments = agent.env if isinstance(agent.env, list | tuple) else [agent.env]
        count = options.workers or len(environments)
        optimizer = agent.optimizer
        optimizers = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
        return cls(settings, agent.env, count, optimizers, options.jit_compile, strategy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionKey):
            return NotImplemented
        same_objects = self.environments is other.environments and self.strategy is other.strategy
        same_objects = same_objects and self.trains_with(other)
        mine, others = ((key.settings, key.count, key.jit_compile) for key in (self, other))
        return same_objects and mine == others

    def trains_with(self, other: SessionKey) -> bool:
        """Whether the optimizers are the same objects."""
        return [id(one) for one in self.optimizers] == [id(one) for one in other.optimizers]


def _check_agent(agent: Any) -> None:
    name, given = type(agent).__name__, agent.optimizer
    for attribute, what in (("env", "an environment, a Gymnasium id or a callable"), ("param", "what is trained")):
        if getattr(agent, attribute) is None:
            raise ConfigError(f"{attribute} of {name} is not set; give it {what}, in __init__.")
    if given is None or (isinstance(given, list | tuple) and any(one is None for one in given)):
        raise ConfigError(
            f"train needs an optimizer the first time it is called, or one for each list in param; got {given!r}. Give "
            f"it one, such as {EXAMPLES[agent.framework]}."
        )


class Session:
    """The parts of one agent's training.

    make_environments: from their numbers in the run to environments. explorer: of all of them. adjuster: moves
    hyperparameters of the learner. group: the processes that train the agent, where they are several. chief: whether
    this process, of all that train the agent, steps the environments, reports and saves.
    """

    def __init__(
        self,
        make_environments: Any,
        explorer: Explorer,
        learner: EpisodeLearner,
        adjuster: Adjuster,
        seed: int,
        group: ProcessGroup | None = None,
    ):
        self.learner: EpisodeLearner = learner
        self.adjuster: Adjuster = adjuster
        self._group = group
        self.told = False  # of networks that stay as they are
        self.chief: bool = group is None or group.rank == 0
        self._make_environments, self._explorer, self._seed = make_environments, explorer, seed
        self._lifecycle: Collection | None = None
        self._rollout_state: dict[str, Any] | None = None

    def open(self, options: Options) -> Collection:
        """The rollout lifecycle for these options; continues where the last one ended."""
        spaces, count = self.learner.engine.spaces, self.learner.count
        make_rollout = functools.partial(self._rollout, options)
        self.learner.engine.share(self._busy(options))
        self._lifecycle = Collection(lambda total: self._explorer, make_rollout, spaces, count, self._seed)
        self._lifecycle.restore(self._rollout_state)
        return self._lifecycle

    @property
    def several(self) -> bool:
        """Whether several processes train the agent."""
        return self._group is not None

    def agreed(self, reason: str | None) -> str | None:
        """A reason to stop that any of the processes has that train the agent."""
        if self._group is None:
            return reason
        return next((found for found in self._group.gather("reasons to stop", reason) if found is not None), None)

    def check_alike(self, **given: Any) -> None:
        """Raise ConfigError where the processes that train the agent do not begin with the same."""
        if self._group is None:
            return
        plain = {k: v for k, v in vars(self.learner.settings).items() if isinstance(v, int | float | str | None)}
        own = {"agent": type(self.learner.engine.agent).__name__, "seed": self._seed, **plain, **given}
        own |= {"environments": self.learner.count, "episodes so far": self.learner.progress.episodes}
        chief, *others = self._group.gather("settings", own)
        for rank, other in enumerate(others, 1):
            for name in own:
                if other[name] != chief[name]:
                    raise ConfigError(
                        f"The workers of a cluster train one agent; {name} is {chief[name]!r} in worker 0 and "
                        f"{other[name]!r} in worker {rank}. Start the same program everywhere, and restore the same "
                        "file."
                    )

    def leave(self, problem: BaseException) -> None:
        """Let the other processes that train the agent end, too, unless they all raise the same."""
        alike = NumericalError | EndTraining  # computed from what all have
        known = isinstance(problem, alike) or (isinstance(problem, EtudeError) and problem.in_all_processes)
        if self._group is not None and not known:
            self._group.leave(f"{type(problem).__name__}: {problem}")

    def abort(self) -> None:
        """Stop collecting without waiting for workers: their open episodes are lost."""
        if self._lifecycle is not None:
            self._lifecycle.give_up()

    def close(self) -> None:
        """Stop collecting, and keep the state of the environments."""
        if self._lifecycle is not None:
            try:
                self._lifecycle.close()
            finally:
                self._rollout_state, self._lifecycle = self._lifecycle.state(), None

    def overlaps(self, options: Options) -> bool:
        """Whether workers collect while this process learns: they can act, and may do so with old weights."""
        can = options.workers > 0 and self.learner.engine.exportable
        return can and options.parallel_store_and_training and self.learner.regime.may_overlap

    def _busy(self, options: Options) -> Busy:
        """Workers step right after this process acts, where it acts; or act by themselves while it learns."""
        acting = 0 if self.learner.engine.exportable else options.workers
        return Busy(acting, options.workers if self.overlaps(options) else 0)

    def _rollout(self, options: Options, explorer: Explorer) -> Rollout:
        own = self._collecting(options, explorer) if self.chief else None
        if self._group is None:
            assert own is not None
            return own
        return BroadcastRollout(own, self._group, self.learner.engine.spaces, self.learner.count)

    def _collecting(self, options: Options, explorer: Explorer) -> Rollout:
        engine, count = self.learner.engine, self.learner.count
        make, seed = self._make_environments, self._seed
        actor = engine.actor()
        if not options.workers:
            return InProcess(make(range(count)), engine if actor is None else actor, explorer, seed)
        buffer = buffer_size(engine.spaces, count, options.workers)
        pool = PoolOptions(overlap=self.overlaps(options), buffer=buffer)
        if actor is None:
            return acting_in_process(make, engine, explorer, seed, count, options.workers, pool)
        make_actor = functools.partial(acting_in_worker, actor, self.learner.policies)
        return Pool(make, make_actor, explorer, seed, count, options.workers, pool)

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` continues. replay: whether to include it."""
        rollout = self._rollout_state if self._lifecycle is None else self._lifecycle.state()
        adjusted = self.adjuster.state()
        kept = {"adjusted": adjusted} if adjusted else {}
        policies = {str(i): numbers(policy) for i, policy in enumerate(self.learner.policies)}
        return {**self.learner.state(replay), "rollout": rollout, "policies": policies, **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; CheckpointError, and nothing changed, where it does not fit."""
        stored = Stored(state, "training").fields(("engine", "progress", "rollout"), ("replay", "adjusted", "policies"))
        self.learner.check_state(stored)
        if "adjusted" in stored:
            self.adjuster.check_state(stored["adjusted"])
        for policy in stored["policies"].table().values() if "policies" in stored else ():
            for number in policy.table().values():
                number.number()
        if state["rollout"] is not None:
            check_rollout(stored["rollout"], self.learner.count, self.learner.engine.spaces, {})
        self.learner.restore(state)
        if "adjusted" in state:
            self.adjuster.restore(state["adjusted"])
        for i, policy in enumerate(self.learner.policies):
            take_numbers(policy, state.get("policies", {}).get(str(i), {}))
        self._rollout_state = state["rollout"]

    def go_on_from_file(self, state: dict[str, Any], warn: Callable[[str], None]) -> None:
        """Continue from what a file held, and warn where a learning rate is not the one that was given."""
        given = self._learning_rates()
        self.restore(state)
        saved = self._learning_rates()
        if given != saved:
            warn(
                f"The optimizer was given with learning rate {given} and goes on with {saved}, which it was saved "
                "with. To learn with another, set it on the optimizer after this call of train."
            )

    def _learning_rates(self) -> str:
        return ", ".join(f"{one.read():g}" for one in self.learner.engine.optimizer_settings("learning_rate"))

    def go_on(self, state: dict[str, Any], alike: SessionKey, key: SessionKey) -> str:
        """Continue from the state of the session before, of the key `alike`, with what was given anew; returns why
        there is nothing to continue from, "" where there is."""
        before, now = alike.settings, key.settings
        if alike.environments is not key.environments or alike.count != key.count:
            return "it is of other environments, or of another number of processes"
        if before.pool_folder is not None:
            return "its folder goes to a new one"
        if not alike.trains_with(key):
            state["engine"] |= {"optimizers": self.learner.engine.state()["optimizers"]}
        if before.explorer is not now.explorer or before.epsilon != now.epsilon:
            del state["policies"]
        if before.alpha != now.alpha and "alpha" in state["replay"]["selector"]:
            state["replay"]["selector"]["alpha"] = now.alpha
        try:
            self.restore({name: part for name, part in state.items() if name != "adjusted"})
        except CheckpointError as error:
            return str(error)
        return ""


def build_session(agent: Any, key: SessionKey, seed: int, warn: Callable[[str], None]) -> Session:
    """Everything that trains an agent. warn: takes warnings of the environment."""
    settings = key.settings
    environments = UserEnvironments.of(key.environments, seed, RawActions, agent.reward_done_func_ma)
    described = environments.describe()
    for note in described.notes:
        warn(note)
    _check_agents(settings, described)
    check_networks(agent, warn)
    source, regime, gamma = reward_source(agent, settings), regime_of(settings), _gamma_of(agent)
    transitions = transitions_of(agent, settings, described, gamma(), seed)
    arguments = LossArguments(transitions.convert, gamma)
    replicas = engines.strategy_replicas(key.strategy)
    if replicas is not None:
        replicas.check_batch(settings.batch)
    engine = _engine(agent, key, described, arguments, seed, replicas)
    _check_outputs(agent, settings, engine.act(zeros(described.spaces.observation, key.count)), described)
    arguments.rewards = source.model(engine)
    group = None if replicas is None else replicas.group
    folder = _folder_of(settings.pool_folder, 0 if group is None else group.rank)
    ring = _ring(settings, described, key.count, source.extras(engine), folder)
    buffer = Buffer(ring, regime.selector(ring.rows), transitions.view, generator(seed, "replay"), fixed=True)
    hyper = lambda: {"gamma": gamma()}  # noqa: E731
    learner = EpisodeLearner(settings, regime, engine, buffer, key.count, hyper, generator(seed, "spread"))
    learner.policies = _policies(settings)
    learner.before_phase = lambda: agent.adjust_func and agent.adjust_func()
    knobs = Knobs(agent, learner, engine, 1 if replicas is None else replicas.count)
    adjuster = Adjuster(knobs, generator(seed, "adjust"))
    return Session(environments, source.explorer(_explorer(settings, described)), learner, adjuster, seed, group)


def _engine(
    agent: Any,
    key: SessionKey,
    described: EnvironmentDescription,
    arguments: LossArguments,
    seed: int,
    replicas: Any,
) -> UserAgentEngine:
    spaces, settings = described.spaces, key.settings
    agents = None if described.agents is None else len(described.agents.names)
    interface = AgentInterface(
        spaces, arguments, conversion_for(spaces.observation), agents, settings.follows_each_step
    )
    return make_engine(
        agent, list(key.optimizers), interface, seed=seed, jit_compile=key.jit_compile, framework=agent.framework,
        replicas=replicas,
    )  # fmt: skip


def _gamma_of(agent: Any) -> Callable[[], float]:
    """Reads the agent's discount; 1 where it has none."""
    return lambda: float(getattr(agent, "gamma", 1.0))


def _folder_of(folder: str | None, rank: int) -> str | None:
    """The folder of a process's replay: the workers of a cluster may share a disk."""
    return folder if folder is None or rank == 0 else str(Path(folder) / f"worker{rank}")


def _ring(
    settings: Settings, described: EnvironmentDescription, count: int, extras: Extras, folder: str | None
) -> Ring:
    """Stores the steps of `count` environments. extras: by name, stored with every row."""
    shape = () if described.agents is None else (len(described.agents.names),)
    size = max(settings.pool_size, -(-settings.batch // count) * count)  # every column has as many rows
    return Ring(described.spaces, size, count, extras, reward_shape=shape, folder=folder)


def _explorer(settings: Settings, described: EnvironmentDescription) -> Explorer:
    """The explorer of all environments; made of one for each environment, or one for each of several agents."""
    several = _policies(settings)
    if settings.epsilon is not None:
        for policy in several:
            policy.eps = settings.epsilon
    if described.agents is not None:
        return ByAgent(several, described.agents.actions)
    return Each(tuple(several)) if len(several) > 1 else several[0]


def _policies(settings: Settings) -> list[Any]:
    """What explores: one, or one for each environment or agent."""
    given = settings.explorer
    return list(given) if isinstance(given, list | tuple) else [AsIs() if given is None else given]


def _check_outputs(agent: Any, settings: Settings, output: Any, described: EnvironmentDescription) -> None:
    """Raise ConfigError where `action` returns values that no policy turns into actions, or of another number of
    actions than there are."""
    space = described.spaces.action
    values = isinstance(output, np.ndarray) and output.ndim == 2 and output.dtype.kind == "f"
    if isinstance(space, Discrete) and values and output.shape[1] != space.n:
        raise ConfigError(
            f"{type(agent).__name__}.action returned {output.shape[1]} values for each state; {described.name} has "
            f"{space.n} actions. Give the network {space.n} outputs."
        )
    if isinstance(space, Discrete) and values and settings.explorer is None:
        raise ConfigError(
            f"{type(agent).__name__}.action returns values of {space.n} actions, and no policy chooses among them. "
            "Give one: set(policy=EpsGreedyQPolicy(0.1)), for example."
        )


def _check_agents(settings: Settings, described: EnvironmentDescription) -> None:
    """Raise ConfigError where the environment has several agents and the settings one, or the other way round."""
    if settings.MARL and described.agents is None:
        raise ConfigError(
            f"MARL=True, but {described.name} has one agent; expected a PettingZoo parallel environment. Leave MARL "
            "off, or give another environment."
        )
    if described.agents is not None and not settings.MARL:
        raise ConfigError(f"{described.name} has several agents: {described.agents.names}. Say set(..., MARL=True).")
