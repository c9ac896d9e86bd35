"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import on_policy, presets, trees
from etude.actor_learner import turns_for
from etude.agent import Agent
from etude.algorithms import ALGORITHMS, OTHER_NAMES, check_spaces, check_team, find
from etude.config import (
    Config,
    EpisodesConfig,
    GradientsConfig,
    OfflineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    OnPolicySequenceConfig,
    SequenceConfig,
    UnrollsConfig,
)
from etude.config_json import from_json, to_json
from etude.data import MEMORY
from etude.engines.evolution import FromReturns, PerturbedActor
from etude.engines.gradients import FromLosses, FromRollouts
from etude.engines.numpy import NumpyEngine
from etude.engines.perturbed import Perturbed
from etude.envs import choose_vectorization, make_environments, name_of
from etude.envs.make import Vectorization
from etude.errors import ConfigError
from etude.explore import ByAgent, Greedy
from etude.independent import Independent
from etude.judging import JudgingActor, transitions
from etude.networks import Conv, layers_of, with_layers
from etude.networks.encoding import split
from etude.protocols import Engine, Explorer, Replay, Rollout
from etude.replay import (
    AgentSteps,
    Buffer,
    Contributions,
    OneStep,
    Prioritised,
    Returns,
    Ring,
    Rounds,
    Scores,
    Selector,
    Sequences,
    Uniform,
    WholeReturns,
)
from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions
from etude.seeding import generator
from etude.several import Policies, TeamAgent
from etude.spaces import Spaces, zeros

CONFIGS: dict[str, type[Config]] = {  # what an agent's config derives from, by what it learns from
    "transitions": OffPolicyConfig,
    "sequences": SequenceConfig,
    "advantages": OnPolicyConfig,
    "advantage_sequences": OnPolicySequenceConfig,
    "demonstrations": OnPolicyConfig,
    "gradients": GradientsConfig,
    "unrolls": UnrollsConfig,
    "episodes": EpisodesConfig,
    "scores": EpisodesConfig,
}
EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on


@dataclass(frozen=True)
class Setup:
    """Where and how a run is carried out; nothing of this changes what is learned, but for `seed` and
    `environments`."""

    seed: int = 0
    engine: str = "auto"  # auto, jax, torch, tensorflow
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    compiled: bool = False  # torch only: compile the learn step; slow to start, faster then
    environments: int | None = None  # stepped in parallel; None: what the preset says, or 1 off-policy and 8 else
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
        name = OTHER_NAMES.get(algorithm, algorithm)
        agent = kind(config_for(name, environment) if config is None else config)
        if split(spaces.observation)[1] and agent.config.network == config_kind().network:
            network = agent.config.network
            images = Conv(dueling=layers_of(network).dueling, noisy=layers_of(network).noisy)
            agent = kind(dataclasses.replace(agent.config, network=with_layers(network, images)))
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
    usual = 1 if isinstance(agent.config, OffPolicyConfig) else 8
    return max(preset.environments if preset else usual, setup.workers)


def together(agent: Agent, count: int) -> int:
    """How many of so many environments are collected from in one call."""
    return 1 if agent.learns_from == "gradients" else count


def best_for(spaces: Spaces) -> Explorer:
    """What takes the best actions."""
    return Greedy() if spaces.agents is None else ByAgent(Greedy(), [own.action for own in spaces.agents.values()])


def rollout_for(environment: Any, agent: Agent, engine: Engine, setup: Setup, explorer: Explorer) -> Rollout:
    """The rollout that the setup asks for. Where NumPy cannot act, the engine does, in this process."""
    count = setup.environments
    assert count is not None
    # Decided here, for all of them: a worker would decide for its own part.
    waits = agent.learns_from in ("gradients", "scores") and setup.vectorization == "auto"
    vectorization = choose_vectorization(environment, count, "loop" if waits else setup.vectorization)
    make = functools.partial(make_environments, environment, run_seed=setup.seed, vectorization=vectorization)
    if agent.learns_from == "gradients":
        return turns_for(make, agent, engine, explorer, setup, vectorization)
    judged = judges(agent, engine)
    make_actor: Callable[[], Any] = functools.partial(JudgingActor if judged else NumpyEngine, agent, engine.spaces)
    acting_here = Perturbed(engine) if engine.structure.noisy else engine
    if agent.learns_from == "scores":
        _check_perturbed(agent, engine, vectorization)
        make_actor = functools.partial(PerturbedActor, agent, engine.spaces, setup.seed)
    if setup.workers == 0:
        actor = make_actor() if engine.exportable else acting_here
        return InProcess(make(np.arange(count)), actor, explorer, setup.seed, judged)
    if setup.overlap and not engine.exportable:
        raise ConfigError(
            "overlap=True needs a policy that NumPy can compute in the workers; convolutions and modules of your own "
            "act in this process, in step with the workers. Leave overlap off."
        )
    if setup.overlap and isinstance(agent.config, EpisodesConfig):
        raise ConfigError(
            f"overlap=True collects with weights that are one phase old; {type(agent).__name__} learns from whole "
            "episodes of its present policy. Leave overlap off."
        )
    options = PoolOptions(overlap=setup.overlap, judged=judged)
    if engine.exportable:
        return Pool(make, make_actor, explorer, setup.seed, count, setup.workers, options)
    return LockstepPool(make, acting_here, explorer, setup.seed, count, setup.workers, options)


def _check_perturbed(agent: Agent, engine: Engine, vectorization: str) -> None:
    name = type(agent).__name__
    if not engine.exportable:
        raise ConfigError(
            f"{name} acts with weights of its own in each environment, which NumPy computes; it cannot for "
            "convolutions and modules of your own. Use an Mlp."
        )
    if vectorization == "native":
        raise ConfigError(
            f"{name} needs environments that wait for each other's episodes to end; those of a native simulator do "
            "not. Leave vectorization on auto, or use loop."
        )


def gradients_for(agent: Agent, engine: Engine, seed: int, count: int) -> FromLosses | FromReturns | FromRollouts:
    """Where the gradients of a learning phase come from."""
    if agent.learns_from == "gradients":
        return FromRollouts(engine)
    return FromReturns(engine, seed, count) if agent.learns_from == "scores" else FromLosses(engine)


def replay_for(agent: Agent, engine: Engine, seed: int, count: int, folder: str | None) -> Replay:
    """The ring, selector and view that the agent's config describes, or rounds of episodes. folder: see `Ring`."""
    if folder is not None and isinstance(agent.config, EpisodesConfig):
        raise ConfigError(
            f"replay_folder = {folder!r}: {type(agent).__name__} keeps a round of episodes in memory, no replay. Leave "
            "it out."
        )
    if agent.learns_from == "episodes":
        return Rounds(Returns(agent.config.gamma, engine.value))
    if agent.learns_from == "scores":
        return Scores(count)
    if agent.learns_from == "gradients":
        return Contributions()
    make = {
        "transitions": _transitions,
        "sequences": _sequences,
        "advantages": on_policy.advantages,
        "advantage_sequences": on_policy.advantage_sequences,
        "demonstrations": on_policy.advantages,  # the expert comes later: `recorded.show`
        "unrolls": on_policy.unrolls,
    }[agent.learns_from]
    return Buffer(*make(agent, engine, count, folder), generator(seed, "replay"))


def _transitions(agent: Agent, engine: Engine, count: int, folder: str | None) -> on_policy.Parts:
    config, several = agent.config, engine.spaces.agents is not None
    each = (len(engine.spaces.agents),) if several else ()
    ring = Ring(engine.spaces, config.replay_size, count, {}, reward_shape=each, folder=folder)
    view = AgentSteps(config.gamma, config.n_step) if several else transitions(config)
    return ring, _off_policy_selector(config, ring), view


def _sequences(agent: Agent, engine: Engine, count: int, folder: str | None) -> on_policy.Parts:
    config = agent.config
    extras = {MEMORY: ((engine.memory,), np.dtype(np.float32))} if config.stored_memory else {}
    ring = Ring(engine.spaces, config.replay_size, count, extras, folder=folder)
    return ring, _off_policy_selector(config, ring), Sequences(config.gamma, config.sequence_length, config.burn_in)


def _off_policy_selector(config: OffPolicyConfig, ring: Ring) -> Selector:
    return Prioritised(ring.rows, config.priority_exponent) if config.priority_exponent else Uniform()


def judges(agent: Agent, engine: Engine) -> bool:
    """Whether actors judge what they collect: where the config asks for it, and NumPy can."""
    config = agent.config
    return engine.exportable and isinstance(config, OffPolicyConfig) and config.actor_priorities


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
    shown = 2 if agent.learns_from == "demonstrations" else 1  # the expert's beside it
    lengths = {"sequences": "sequence_length", "advantage_sequences": "sequence_length", "unrolls": "rollout"}
    length = lengths.get(agent.learns_from)
    return transition * (shown if length is None else getattr(agent.config, length))


def acting_weights(agent: Agent, engine: Engine) -> tuple[str, ...]:
    """The names of the weights that rollouts need: those that acting reads, all where actors judge what they collect or
    differentiate; none where the engine itself acts."""
    if agent.learns_from == "gradients":
        return tuple(engine.structure.initial)
    if not engine.exportable:
        return ()
    if judges(agent, engine):
        return tuple(engine.structure.initial)
    return NumpyEngine(agent, engine.spaces).read_by_acting(zeros(engine.spaces.observation, 1))
