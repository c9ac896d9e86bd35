"""Builds the session that trains an agent of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import etude.engines as engines
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Discrete, zeros
from etude.envs import RawActions
from etude.explore import AsIs, ByAgent, Each
from etude.protocols import Explorer
from etude.replay import Buffer, Ring
from etude.replay.sizes import Extras
from etude.solo.adjusting import Adjuster
from etude.solo.conversion import LossArguments, conversion_for
from etude.solo.engines import AgentInterface, UserAgentEngine, check_networks, make_engine
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.irl import reward_source
from etude.solo.knobs import Knobs
from etude.solo.learner import EpisodeLearner
from etude.solo.regimes import regime_of
from etude.solo.session import Session, SessionKey
from etude.solo.settings import Settings
from etude.solo.transitions import transitions_of


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
