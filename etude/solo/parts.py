"""From an agent of one's own to the parts that train it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Discrete, zeros
from etude.engines.solo import Calling, solo_engine
from etude.envs import Described, GivenEnvironments, OwnUnits
from etude.explore import AsIs, ByAgent, Each
from etude.protocols import Explorer
from etude.replay import Buffer, Ring
from etude.replay.sizes import Extras
from etude.solo.irl import rewards_of
from etude.solo.learner import EpisodeLearner
from etude.solo.options import Options
from etude.solo.presentation import Arguments, present_for
from etude.solo.regimes import regime_of
from etude.solo.session import Session
from etude.solo.settings import Settings
from etude.solo.transitions import transitions_of


@dataclass(frozen=True, eq=False)
class Demand:
    """What a session is made for; where nothing of it changes, training goes on with the same session."""

    settings: Settings
    environments: Any  # what the agent holds as `env`
    count: int
    optimizers: tuple[Any, ...]
    jit_compile: bool

    @classmethod
    def of(cls, agent: Any, settings: Settings, options: Options) -> Demand:
        """What `train` with these options asks for."""
        _check_agent(agent)
        several = agent.env if isinstance(agent.env, list | tuple) else [agent.env]
        count = options.workers or len(several)
        given = agent.optimizer
        optimizers = tuple(given) if isinstance(given, list | tuple) else (given,)
        return cls(settings, agent.env, count, optimizers, options.jit_compile)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Demand):
            return NotImplemented
        same_things = self.environments is other.environments and len(self.optimizers) == len(other.optimizers)
        same_things = same_things and all(a is b for a, b in zip(self.optimizers, other.optimizers, strict=True))
        mine, others = ((d.settings, d.count, d.jit_compile) for d in (self, other))
        return same_things and mine == others


def session_for(agent: Any, demand: Demand, seed: int, warn: Callable[[str], None]) -> Session:
    """Everything that trains an agent. warn: tells the user what they should know of the environment."""
    settings = demand.settings
    given = GivenEnvironments.of(demand.environments, seed, OwnUnits, agent.reward_done_func_ma)
    described = given.describe()
    for note in described.notes:
        warn(note)
    _check_team(settings, described)
    rewards, regime, gamma = rewards_of(agent, settings), regime_of(settings), _gamma_of(agent)
    transitions = transitions_of(agent, settings, described, gamma(), seed)
    agents = None if described.team is None else len(described.team.names)
    arguments = Arguments(transitions.present, gamma)
    follow = settings.update_steps is None and settings.update_batches is None
    calling = Calling(described.spaces, arguments, present_for(described.spaces.observation), agents, follow)
    engine = solo_engine(
        agent,
        list(demand.optimizers),
        calling,
        seed=seed,
        jit_compile=demand.jit_compile,
        framework=agent.framework,
    )
    _check_outputs(agent, engine.act(zeros(described.spaces.observation, demand.count)), described)
    arguments.rewards = rewards.model(engine)
    ring = _ring(settings, described, demand.count, rewards.stored(engine))
    buffer = Buffer(ring, regime.selector(ring.rows), transitions.view, generator(seed, "replay"))
    hyper = lambda: {"gamma": gamma()}  # noqa: E731
    learner = EpisodeLearner(settings, regime, engine, buffer, demand.count, hyper, generator(seed, "spread"))
    return Session(given, rewards.exploring(_explorer(settings, described)), learner, seed)


def _gamma_of(agent: Any) -> Callable[[], float]:
    """Reads the agent's discount; 1 where it has none."""
    return lambda: float(getattr(agent, "gamma", 1.0))


def _ring(settings: Settings, described: Described, count: int, extras: Extras) -> Ring:
    """What stores the steps of so many environments. extras: what is stored besides."""
    shape = () if described.team is None else (len(described.team.names),)
    size = max(settings.pool_size, count)
    return Ring(described.spaces, size, count, extras, reward_shape=shape, folder=settings.pool_folder)


def _explorer(settings: Settings, described: Described) -> Explorer:
    """What explores: one for all, one for each environment, or one for each of several agents."""
    given = settings.explorer
    several = list(given) if isinstance(given, list | tuple) else [AsIs() if given is None else given]
    if settings.epsilon is not None:
        for policy in several:
            policy.eps = settings.epsilon
    if described.team is not None:
        return ByAgent(several, described.team.actions)
    return Each(several) if len(several) > 1 else several[0]


EXAMPLES = {"keras": "keras.optimizers.Adam()", "torch": "torch.optim.Adam(agent.param)"}


def _check_agent(agent: Any) -> None:
    """Raise ConfigError where an agent lacks what training needs."""
    name, given = type(agent).__name__, agent.optimizer
    for attribute, what in (("env", "an environment, a Gymnasium id or a callable"), ("param", "what is trained")):
        if getattr(agent, attribute) is None:
            raise ConfigError(f"{attribute} of {name} is not set; give it {what}, in __init__.")
    if given is None or (isinstance(given, list | tuple) and any(one is None for one in given)):
        raise ConfigError(
            f"train needs an optimizer the first time it is called, or one for each list in param; got {given!r}. Give "
            f"it one, such as {EXAMPLES[agent.framework]}."
        )


def _check_outputs(agent: Any, output: Any, described: Described) -> None:
    """Raise ConfigError where `action` returns values of more or fewer actions than there are."""
    space = described.spaces.action
    values = isinstance(output, np.ndarray) and output.ndim == 2 and output.dtype.kind == "f"
    if isinstance(space, Discrete) and values and output.shape[1] != space.n:
        raise ConfigError(
            f"{type(agent).__name__}.action returned {output.shape[1]} values for each state; {described.name} has "
            f"{space.n} actions. Give the network {space.n} outputs."
        )


def _check_team(settings: Settings, described: Described) -> None:
    """Raise ConfigError where the environment has several agents and the settings one, or the other way round."""
    if settings.MARL and described.team is None:
        raise ConfigError(
            f"MARL=True, but {described.name} has one agent; expected a PettingZoo parallel environment. Leave MARL "
            "off, or give another environment."
        )
    if described.team is not None and not settings.MARL:
        raise ConfigError(f"{described.name} has several agents: {described.team.names}. Say set(..., MARL=True).")
