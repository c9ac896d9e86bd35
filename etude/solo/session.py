"""The session of an agent of one's own, kept from one call of `train` to the next: its replay, engine and environments,
and how they are made from its flags."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import etude.engines as engines
from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.data import Batch
from etude.base.errors import CheckpointError, ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Discrete, zeros
from etude.explore import AsIs, ByAgent, Each
from etude.protocols import Explorer, ProcessGroup, Rollout
from etude.replay import Buffer, Hindsight, NStep, OneStep, Ring, Triplets
from etude.replay.buffer import View
from etude.replay.ring import Extras
from etude.rollout import BroadcastRollout, InProcess, Pool, PoolOptions, acting_in_process, buffer_size
from etude.solo.adjusting import Adjuster
from etude.solo.engines import AgentInterface, check_networks, make_engine, numbers, take_numbers
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.learner import (
    REWARD_INPUTS,
    Conversion,
    EpisodeLearner,
    RewardInputsExplorer,
    acting_in_worker,
    conversion_for,
    is_goal_space,
    learns_rewards,
    loss_arguments,
    split_output,
)
from etude.solo.settings import Options, Settings, StrategyArguments, replay_kind_of
from etude.training.loop import Collection

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
    def of(cls, agent: Any, options: Options, given: StrategyArguments | None) -> SessionKey:
        """The key for `train` with these options; ConfigError where the agent lacks what training needs."""
        settings, strategy = state_of(agent).settings, None
        if given is not None:
            strategy = given.strategy
            if given.global_batch_size is not None:
                settings = replace(settings, batch=given.global_batch_size)
        name, optimizer = type(agent).__name__, agent.optimizer
        for attribute, what in (("env", "an environment, a Gymnasium id or a callable"), ("param", "what is trained")):
            if getattr(agent, attribute) is None:
                raise ConfigError(f"{attribute} of {name} is not set; give it {what}, in __init__.")
        optimizers = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
        if any(one is None for one in optimizers):
            raise ConfigError(
                "train needs an optimizer the first time it is called, or one for each list in param; got "
                f"{optimizer!r}. Give it one, such as {EXAMPLES[agent.framework]}."
            )
        environments = agent.env if isinstance(agent.env, list | tuple) else [agent.env]
        count = options.workers or len(environments)
        return cls(settings, agent.env, count, optimizers, options.jit_compile, strategy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionKey) and self._compared == other._compared

    @property
    def _compared(self) -> tuple[Any, ...]:
        """Objects of the user's are the same, or they are others."""
        return (
            self.settings, self.count, self.jit_compile, self.optimizer_ids, id(self.environments), id(self.strategy)
        )  # fmt: skip

    @property
    def optimizer_ids(self) -> list[int]:
        """Which objects the optimizers are."""
        return [id(one) for one in self.optimizers]


@dataclass(eq=False)
class Session:
    """The parts of one agent's training.

    make_environments: from their numbers in the run to environments. explorer: of all of them. adjuster: moves
    hyperparameters of the learner. group: the processes that train the agent, where they are several. chief: whether
    this process, of all that train the agent, steps the environments, reports and saves.
    """

    make_environments: Any
    explorer: Explorer
    learner: EpisodeLearner
    adjuster: Adjuster
    seed: int
    group: ProcessGroup | None = None
    told: bool = False  # of networks that stay as they are

    def __post_init__(self) -> None:
        self.chief: bool = self.group is None or self.group.rank == 0
        rollout = functools.partial(self._rollout, Options())
        spaces, count = self.learner.engine.spaces, self.learner.count
        self.collection: Collection = Collection(lambda total: self.explorer, rollout, spaces, count, self.seed)

    def open(self, options: Options) -> Collection:
        """What collects with these options; continues where the last one ended."""
        # Workers step right after this process acts, where it acts; or act by themselves while it learns.
        acting = 0 if self.learner.engine.exportable else options.workers
        self.learner.engine.busy = Busy(acting, options.workers if self.overlaps(options) else 0)
        self.collection.collect_with(functools.partial(self._rollout, options))
        return self.collection

    def overlaps(self, options: Options) -> bool:
        """Whether workers collect while this process learns: they can act, and may do so with old weights."""
        can = options.workers > 0 and self.learner.engine.exportable
        return can and options.parallel_store_and_training and self.learner.replay_kind.drop is None

    def _rollout(self, options: Options, explorer: Explorer) -> Rollout:
        """Steps the environments in the chief, in its own process or in workers; the others get the same steps."""
        engine, count, make = self.learner.engine, self.learner.count, self.make_environments
        if not self.chief and self.group is not None:
            return BroadcastRollout(None, self.group, engine.spaces, count)
        actor = engine.actor()
        own: Rollout
        size = buffer_size(engine.spaces, count, max(1, options.workers))
        pool = PoolOptions(overlap=self.overlaps(options), buffer=size)
        if not options.workers:
            own = InProcess(make(range(count)), engine if actor is None else actor, explorer, self.seed)
        elif actor is None:
            own = acting_in_process(make, engine, explorer, self.seed, count, options.workers, pool)
        else:
            make_actor = functools.partial(acting_in_worker, actor, self.learner.policies)
            own = Pool(make, make_actor, explorer, self.seed, count, options.workers, pool)
        return own if self.group is None else BroadcastRollout(own, self.group, engine.spaces, count)

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` continues. replay: whether to include it."""
        adjusted = self.adjuster.state()
        kept = {"adjusted": adjusted} if adjusted else {}
        policies = {str(i): numbers(policy) for i, policy in enumerate(self.learner.policies)}
        return {**self.learner.state(replay), "rollout": self.collection.state(), "policies": policies, **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; CheckpointError, and nothing changed, where it does not fit."""
        stored = Stored(state, "training").fields(("engine", "progress", "rollout"), ("replay", "adjusted", "policies"))
        self.learner.check_state(stored)
        if "adjusted" in stored:
            self.adjuster.check_state(stored["adjusted"])
        for policy in stored["policies"].table().values() if "policies" in stored else ():
            for number in policy.table().values():
                number.number()
        self.collection.check_state(stored["rollout"], {})
        self.learner.restore(state)
        if "adjusted" in state:
            self.adjuster.restore(state["adjusted"])
        for i, policy in enumerate(self.learner.policies):
            take_numbers(policy, state.get("policies", {}).get(str(i), {}))
        self.collection.restore(state["rollout"])

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
        if alike.optimizer_ids != key.optimizer_ids:
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


@dataclass
class History:
    """Losses and rewards of all training of an agent. An episode here is one episode of every environment."""

    losses: list[float] = field(default_factory=list)  # of every episode learned from: the mean over its minibatches
    rewards: list[float] = field(default_factory=list)  # of every episode: the mean return over the environments
    seconds: float = 0.0
    best: tuple[int, float] | None = None  # trial_count, and the highest mean over so many episodes that was saved
    files: list[int] = field(default_factory=list)  # the episodes of the files that `max_save_files` keeps
    stop: bool = False  # whether the user asked to stop

    @property
    def episodes(self) -> int:
        """Episodes so far."""
        return len(self.rewards)

    @property
    def logs(self) -> dict[str, float]:
        """The logs of callbacks: the latest loss and reward, where there is one."""
        latest = {"loss": self.losses[-1:], "reward": self.rewards[-1:]}
        return {name: values[0] for name, values in latest.items() if values}


@dataclass
class SessionState:
    """What belongs to the training of an agent, apart from the agent's own attributes."""

    settings: Settings = Settings()
    history: History = field(default_factory=History)
    key: SessionKey | None = None  # of the session
    session: Session | None = None
    pending: dict[str, Any] | None = None  # a restored state, until a session is built
    save_data: bool = True  # whether checkpoints hold the replay
    param: Any = None
    made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # the arguments of the agent's class

    @property
    def chief(self) -> bool:
        """Whether this process writes files: of several that train the agent, one does."""
        return self.session is None or self.session.chief


def state_of(agent: Any) -> SessionState:
    """What an agent's training has come to."""
    return agent._session_state


def build_session(agent: Any, key: SessionKey, seed: int, warn: Callable[[str], None]) -> Session:
    """Everything that trains an agent. warn: takes warnings of the environment."""
    settings = key.settings
    environments = UserEnvironments.of(key.environments, seed, agent.reward_done_func_ma)
    described = environments.describe()
    for note in described.notes:
        warn(note)
    spaces, agents = described.spaces, described.agents
    if settings.MARL and described.agents is None:
        raise ConfigError(
            f"MARL=True, but {described.name} has one agent; expected a PettingZoo parallel environment. Leave MARL "
            "off, or give another environment."
        )
    if described.agents is not None and not settings.MARL:
        raise ConfigError(f"{described.name} has several agents: {(*described.agents,)}. Say set(..., MARL=True).")
    check_networks(agent, warn)
    learned, replay_kind = learns_rewards(agent, settings), replay_kind_of(settings)
    gamma = lambda: float(getattr(agent, "gamma", 1.0))  # noqa: E731  # it may change at any time
    view, convert = _view(agent, settings, described, gamma(), seed)
    replicas = engines.strategy_replicas(key.strategy)
    if replicas is not None:
        replicas.check_batch(settings.batch)
    several, acts_on = None if agents is None else len(agents), conversion_for(spaces.observation)

    def arguments(batch: Batch) -> tuple[Any, ...]:
        return loss_arguments(batch, convert, gamma(), engine.rewards if learned else None)

    engine = make_engine(
        agent, list(key.optimizers),
        AgentInterface(spaces, arguments, acts_on, several, settings.follows_each_step),
        seed=seed, jit_compile=key.jit_compile, framework=agent.framework, replicas=replicas,
    )  # fmt: skip
    output = engine.act(zeros(spaces.observation, key.count))
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
    extras: Extras = {}
    if learned:
        inputs, _ = split_output(engine.act(zeros(spaces.observation, 1)), 1)
        extras = {REWARD_INPUTS: (inputs.shape[1:], inputs.dtype)}

    group, folder = None if replicas is None else replicas.group, settings.pool_folder
    if folder is not None and group is not None and group.rank:  # the workers of a cluster may share a disk
        folder = str(Path(folder) / f"worker{group.rank}")
    size = max(settings.pool_size, -(-settings.batch // key.count) * key.count)  # every column has as many rows
    ring = Ring(spaces, size, key.count, extras, reward_shape=() if several is None else (several,), folder=folder)
    buffer = Buffer(ring, replay_kind.selector(ring.rows), view, generator(seed, "replay"), fixed=True)
    hyper = lambda: {"gamma": gamma()}  # noqa: E731
    learner = EpisodeLearner(settings, replay_kind, engine, buffer, key.count, hyper, generator(seed, "spread"))
    learner.before_phase = lambda: agent.adjust_func and agent.adjust_func()
    given = settings.explorer
    policies: list[Any] = list(given) if isinstance(given, list | tuple) else [AsIs() if given is None else given]
    for policy in policies if settings.epsilon is not None else ():
        policy.eps = settings.epsilon
    learner.policies = policies
    explorer: Explorer = Each(tuple(policies)) if len(policies) > 1 else policies[0]
    if agents is not None:
        explorer = ByAgent(policies, tuple(agents.values()))
    if learned:
        explorer = RewardInputsExplorer(explorer)
    adjuster = Adjuster(agent, learner, generator(seed, "adjust"), 1 if replicas is None else replicas.count)
    return Session(environments, explorer, learner, adjuster, seed, group)


def _view(
    agent: Any, settings: Settings, described: EnvironmentDescription, gamma: float, seed: int
) -> tuple[View, Conversion]:
    """What makes batches, as the settings ask, and from its observations to those that `__call__` gets; ConfigError
    where agent or environment do not fit."""
    convert, steps = conversion_for(described.spaces.observation), settings.num_steps
    if settings.TRL:
        triplets = Triplets(gamma, rng=generator(seed, "triplets"))
        return triplets, lambda times: tuple(convert(observation) for observation in times)
    if steps is not None and steps > 1 and not hasattr(agent, "gamma"):
        raise ConfigError(
            f"num_steps = {steps} sums discounted rewards: give {type(agent).__name__} an attribute gamma."
        )
    view: OneStep | NStep = OneStep(gamma) if steps is None else NStep(gamma, steps)
    if not settings.HER:
        return view, convert
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
    return Hindsight(view, agent.reward_done_func, generator(seed, "hindsight")), convert
