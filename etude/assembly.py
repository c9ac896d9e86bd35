"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import presets, trees
from etude.agent import ActsBy, Agent
from etude.algorithms import ALGORITHMS, check_spaces, check_team, find
from etude.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig, SequenceConfig
from etude.config_json import from_json, to_json
from etude.data import MEMORY
from etude.engines.numpy import NumpyEngine
from etude.envs import choose_vectorization, make_environments, name_of
from etude.envs.make import Vectorization
from etude.errors import ConfigError
from etude.explore import ByAgent, EpsilonGreedy, GaussianNoise, Greedy, Sample
from etude.independent import Independent
from etude.networks import Conv, with_layers
from etude.networks.encoding import split
from etude.protocols import Engine, Explorer, Rollout
from etude.replay import (
    Advantages,
    AgentAdvantages,
    AgentSteps,
    Buffer,
    Epochs,
    NStep,
    OneStep,
    Prioritised,
    Ring,
    Selector,
    Sequences,
    Uniform,
    View,
    WholeReturns,
)
from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions
from etude.seeding import generator
from etude.several import Policies, TeamAgent
from etude.spaces import Spaces, zeros

CONFIGS = {"transitions": OffPolicyConfig, "sequences": SequenceConfig, "advantages": OnPolicyConfig}
EXPLORED_BY = {"values": ["epsilon"], "actions": ["exploration_noise", "random_steps"], "distribution": []}  # fields

EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on


@dataclass(frozen=True)
class Setup:
    """Where and how a run is carried out; nothing of this changes what is learned, but for `seed` and
    `environments`."""

    seed: int = 0
    engine: str = "auto"  # auto, jax, torch, tensorflow
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    compiled: bool = False  # torch only: compile the learn step; slow to start, faster then
    environments: int | None = None  # stepped in parallel; None: what the preset says, or 1 off-policy and 8 on-policy
    workers: int = 0  # processes that collect; 0: in this process
    overlap: bool = False  # workers collect while the learner learns, with weights that are one phase old
    vectorization: Vectorization = "auto"  # auto, loop, native: see envs.make_environments
    replay_folder: str | None = None  # keep the replay in files there, for one that is larger than memory

    def __post_init__(self) -> None:
        if self.environments is not None and self.environments < 1:
            raise ConfigError(f"environments = {self.environments}; expected a whole number of at least 1.")
        if self.workers < 0 or (self.environments is not None and self.workers > self.environments):
            raise ConfigError(
                f"workers = {self.workers} for {self.environments} environments; expected from 0 to as many as "
                "environments."
            )
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}; expected a whole number of at least 0.")


def agent_for(
    algorithm: str | Agent, environment: Any, config: Any, spaces: Spaces, policies: Any = None
) -> tuple[str, Agent]:
    """(name, agent). Without a config, the preset for this environment, or the defaults; over images, a `Conv` network
    in the place of the default one. policies: see `several_for`."""
    if isinstance(algorithm, Agent):
        if config is not None:
            raise ConfigError("config= goes with the name of an algorithm; an agent has one already.")
        name, agent = type(algorithm).__name__.lower(), algorithm
    else:
        kind, config_kind = find(algorithm)
        if config is not None and not isinstance(config, config_kind):
            raise ConfigError(f"{algorithm} takes a {config_kind.__name__}; got {type(config).__name__}.")
        name, agent = algorithm, kind(config_for(algorithm, environment) if config is None else config)
        if split(spaces.observation)[1] and agent.config.network == config_kind().network:
            agent = kind(dataclasses.replace(agent.config, network=with_layers(agent.config.network, Conv())))
    agent = several_for(agent, spaces, policies)
    _check_config(agent)
    return name, agent


def several_for(agent: Agent, spaces: Spaces, policies: Any) -> Agent:
    """The agent itself for one agent, or what acts for several: itself where it can, else one of its kind for each
    policy. policies: see `Policies`."""
    if spaces.agents is None:
        if policies is not None:
            raise ConfigError("policies= says which policy drives which agent; this environment has one agent.")
        check_spaces(agent, spaces)
        return agent
    if agent.learns_from not in ("transitions", "advantages") or isinstance(agent.config, OfflineConfig):
        raise ConfigError(
            f"{type(agent).__name__} learns from {agent.learns_from} of one agent, sequences or recorded data; this "
            "environment has several. Use an algorithm such as dqn, ppo or mappo."
        )
    team = (agent if isinstance(agent, TeamAgent) else Independent(agent)).with_policies(policies)
    check_team(team, spaces)
    if isinstance(team, Independent):
        for policy in team.policies.driven(spaces.agents):
            check_spaces(agent, team.policy_spaces(spaces, policy))
    return team


def _check_config(agent: Agent) -> None:
    if isinstance(agent.config, OfflineConfig) and agent.learns_from != "advantages":
        return  # nothing is explored
    base = CONFIGS[agent.learns_from]
    if not isinstance(agent.config, base):
        raise ConfigError(
            f"{type(agent).__name__} learns from {agent.learns_from}, and {type(agent.config).__name__} is no "
            f"{base.__name__}. Derive its config from etude.{base.__name__}, or from that of an algorithm."
        )
    missing = set(EXPLORED_BY[agent.acts_by]) - {field.name for field in dataclasses.fields(agent.config)}
    if missing:
        raise ConfigError(
            f"{type(agent).__name__} acts by {agent.acts_by}, which are explored as the config says in "
            f"{', '.join(sorted(missing))}; {type(agent.config).__name__} lacks it. Add the field."
        )


def config_for(algorithm: str, environment: Any) -> Any:
    """The preset config of an algorithm for an environment id, or its default config."""
    _, config_kind = find(algorithm)
    preset = presets.lookup(algorithm, environment) if isinstance(environment, str) else None
    return config_kind(**(preset.config if preset else {}))


def plain_config(config: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A config as plain data, and the names of the functions in it (networks of one's own), which are no data."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    functions = {name: name_of(value) for name, value in values.items() if callable(value)}
    plain = {name: functions.get(name) or to_json(value) for name, value in values.items()}
    return {"class": type(config).__name__, **plain}, functions


def config_from(described: dict[str, Any]) -> Any:
    """The config in a run's description; ConfigError where that is not all that the run was made from."""
    algorithm, functions = described["algorithm"], described["functions"]
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"This run trains an agent of your own, {algorithm}: give it again, as agent=.")
    if functions:
        what = ", ".join(f"{name} was made by {function}" for name, function in functions.items())
        raise ConfigError(f"This run's {what}, which is not in its checkpoints: give config= (or agent=) again.")
    return from_json(find(algorithm)[1], described["config"])


def plain_policies(agent: Agent, spaces: Spaces) -> dict[str, Any] | None:
    """Which policy drives which agent, as plain data; None where there is one agent."""
    if not isinstance(agent, TeamAgent) or spaces.agents is None:
        return None
    return agent.policies.plain(spaces.agents)


def policies_from(described: dict[str, Any]) -> Policies | None:
    """The policies in a run's description."""
    plain = described.get("policies")
    return None if plain is None else Policies(**plain)


def parallel(setup: Setup, algorithm: str, agent: Agent, environment: Any) -> int:
    """How many environments are stepped in parallel."""
    if setup.environments is not None:
        return setup.environments
    preset = presets.lookup(algorithm, environment) if isinstance(environment, str) else None
    return max(preset.environments if preset else (8 if isinstance(agent.config, OnPolicyConfig) else 1), setup.workers)


def explorer_for(agent: Agent, spaces: Spaces, total: int) -> Explorer:
    """What explores where nothing else is asked for."""
    if isinstance(agent, TeamAgent) and spaces.agents is not None:
        actions = [own.action for own in spaces.agents.values()]
        return ByAgent([_explorer(agent, agent.acts_for(action), total) for action in actions], actions)
    return _explorer(agent, agent.acts_by, total)


def _explorer(agent: Agent, acts_by: ActsBy, total: int) -> Explorer:
    if acts_by == "values":
        return EpsilonGreedy(agent.config.epsilon, total=total)
    if acts_by == "actions":
        return GaussianNoise(agent.config.exploration_noise, total=total, random_steps=agent.config.random_steps)
    return Sample(log_prob=agent.learns_from == "advantages")


def best_for(spaces: Spaces) -> Explorer:
    """What takes the best actions."""
    return Greedy() if spaces.agents is None else ByAgent(Greedy(), [own.action for own in spaces.agents.values()])


def rollout_for(environment: Any, agent: Agent, engine: Engine, setup: Setup, explorer: Explorer) -> Rollout:
    """The rollout that the setup asks for. Where NumPy cannot act, the engine does, in this process."""
    count = setup.environments
    assert count is not None
    # Decided here, for all of them: a worker would decide for its own part.
    vectorization = choose_vectorization(environment, count, setup.vectorization)
    make = functools.partial(make_environments, environment, run_seed=setup.seed, vectorization=vectorization)
    make_actor = functools.partial(NumpyEngine, agent, engine.spaces)
    if setup.workers == 0:
        return InProcess(make(np.arange(count)), make_actor() if engine.exportable else engine, explorer, setup.seed)
    if setup.overlap and not engine.exportable:
        raise ConfigError(
            "overlap=True needs a policy that NumPy can compute in the workers; convolutions and modules of your own "
            "act in this process, in step with the workers. Leave overlap off."
        )
    options = PoolOptions(overlap=setup.overlap)
    if engine.exportable:
        return Pool(make, make_actor, explorer, setup.seed, count, setup.workers, options)
    return LockstepPool(make, engine, explorer, setup.seed, count, setup.workers, options)


def replay_for(agent: Agent, engine: Engine, seed: int, count: int, folder: str | None) -> Buffer:
    """The ring, selector and view that the agent's config describes. folder: see `Ring`."""
    make = {"transitions": _transitions, "sequences": _sequences, "advantages": _advantages}[agent.learns_from]
    return Buffer(*make(agent, engine, count, folder), generator(seed, "replay"))


Parts = tuple[Ring, Selector, View]


def _transitions(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    config = agent.config
    ring = Ring(engine.spaces, config.replay_size, count, {}, reward_shape=_each(engine.spaces), folder=folder)
    if engine.spaces.agents is not None:
        return ring, _off_policy_selector(config, ring), AgentSteps(config.gamma, config.n_step)
    view = OneStep(config.gamma) if config.n_step == 1 else NStep(config.gamma, config.n_step)
    return ring, _off_policy_selector(config, ring), view


def _sequences(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    config = agent.config
    extras = {MEMORY: ((engine.memory,), np.dtype(np.float32))} if config.stored_memory else {}
    ring = Ring(engine.spaces, config.replay_size, count, extras, folder=folder)
    return ring, _off_policy_selector(config, ring), Sequences(config.gamma, config.sequence_length, config.burn_in)


def _off_policy_selector(config: OffPolicyConfig, ring: Ring) -> Selector:
    return Prioritised(ring.rows, config.priority_exponent) if config.priority_exponent else Uniform()


def _advantages(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    config = agent.config
    each = _each(engine.spaces)
    extras = {"log_prob": (each, np.dtype(np.float32))}
    ring = Ring(engine.spaces, config.rollout * count, count, extras, reward_shape=each, folder=folder)
    estimate = Advantages if engine.spaces.agents is None else AgentAdvantages
    return ring, Epochs(), estimate(config.gamma, config.lambda_, engine.value)


def _each(spaces: Spaces) -> tuple[int, ...]:
    """The shape of what there is once for each agent."""
    return () if spaces.agents is None else (len(spaces.agents),)


def recorded_replay_for(agent: Agent, engine: Engine, seed: int, transitions: int, folder: str | None) -> Buffer:
    """The replay that so many recorded transitions fill."""
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    ring = Ring(engine.spaces, transitions + 1, folder=folder)
    gamma = agent.config.gamma
    view = WholeReturns(gamma) if agent.learns_from == "returns" else OneStep(gamma)
    return Buffer(ring, Uniform(), view, generator(seed, "replay"))


def example_bytes(agent: Agent, spaces: Spaces) -> int:
    """Bytes of one example in a batch."""
    transition = 2 * trees.count_bytes(zeros(spaces.observation)) + trees.count_bytes(zeros(spaces.action)) + 24
    return transition * (agent.config.sequence_length if agent.learns_from == "sequences" else 1)


def acting_weights(agent: Agent, engine: Engine) -> tuple[str, ...]:
    """The names of the weights that rollouts need: those that acting reads; none where the engine itself acts."""
    if not engine.exportable:
        return ()
    return NumpyEngine(agent, engine.spaces).read_by_acting(zeros(engine.spaces.observation, 1))
