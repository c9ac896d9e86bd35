"""From the name of an algorithm, a config, the arguments of a run and spaces to an agent that can use them."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.algorithms import ALGORITHMS, find, for_several, named
from etude.base.errors import CheckpointError, ConfigError, SpaceError
from etude.base.spaces import Box, MultiBinary, Space, Spaces, Tokens, bounded, describe, is_float_image
from etude.envs import (
    ConfiguredEnvironment,
    Translation,
    as_given,
    examine,
    make_environments,
    with_global_state,
    with_origins_of,
)
from etude.multi_agent.by_policy import PolicyAgents
from etude.multi_agent.independent import Independent
from etude.multi_agent.policies import MultiAgent
from etude.networks import ActorCritic, Conv, Transformer, layers_of, with_layers
from etude.networks.encoding import fitting_filters, leaves, width
from etude.networks.specs import NATURE, Filters
from etude.training.description import config_for
from etude.training.kinds import TrainingContext, kind_for, kind_of
from etude.training.kinds.kind import vectorization_for


def uses_data(algorithm: str) -> bool:
    """Whether an algorithm needs recorded data, with or without steps of an environment beside it."""
    agent, config = ALGORITHMS[algorithm]
    return kind_for(agent.__name__, agent.learns_from, config).uses_data


def takes_data(algorithm: str) -> bool:
    """Whether an algorithm can learn from recorded data."""
    agent, config = ALGORITHMS[algorithm]
    kind = kind_for(agent.__name__, agent.learns_from, config)
    return (kind.uses_data or kind.takes_data) and not for_several(agent)


def fitting(action: Space, data: bool = False) -> list[str]:
    """The names of the algorithms for one agent that can use an action space and learn without recorded data, or with
    it."""
    return [
        name
        for name, (agent, _) in ALGORITHMS.items()
        if type(action) in agent.actions
        and (bounded(action) or not agent.bounded_actions)
        and uses_data(name) == data
        and not for_several(agent)
    ]


def check_spaces(agent: Agent, spaces: Spaces) -> None:
    """Raise SpaceError where an agent cannot use the action space, with the reason and the algorithms that can."""
    kind = type(agent)
    if for_several(kind):
        others = " or ".join(fitting(spaces.action))
        raise SpaceError(f"{kind.__name__} is for several agents; this environment has one. Use {others}.")
    _check_actions(agent, spaces)


def check_team(agent: MultiAgent, spaces: Spaces) -> None:
    """Raise SpaceError, or ConfigError, where an agent cannot act for the several agents of these spaces."""
    assert spaces.agents is not None
    for name, own in spaces.agents.items():
        try:
            _check_actions(agent.prototype if isinstance(agent, Independent) else agent, own)
        except SpaceError as problem:
            raise SpaceError(f"The agent {name!r}: {problem}") from None
    agent.check(spaces)


def check_collects_steps(agent: Agent, what: str) -> None:
    """Raise ConfigError where an agent's rollouts return no steps, which `what` is computed from."""
    if not kind_of(agent).collects_steps:
        raise ConfigError(
            f"{what} is read from collected steps; {agent} collects none: it learns from recorded data, "
            "or from gradients that workers compute. Leave it out."
        )


def check_same_spaces(spaces: Spaces, own: Spaces, name: str) -> None:
    """Raise SpaceError where an environment, which an agent is to be evaluated on, has other spaces than its own."""
    if spaces != own:
        both = spaces, own
        found, expected = (f"{describe(each.observation)} and {describe(each.action)}" for each in both)
        if found == expected:  # they differ in bounds, which these words leave out
            parts = ([part for _, part in [*leaves(each.observation), *leaves(each.action)]] for each in both)
            for one, other in zip(*parts, strict=True):
                if isinstance(one, Box) and isinstance(other, Box) and one != other:
                    found, expected = (
                        f"{text}, one part within {np.unique(box.low)} and {np.unique(box.high)}"
                        for text, box in ((found, one), (expected, other))
                    )
                    break
        raise SpaceError(
            f"{name} observes and takes {found}; this run's agent, {expected}. Evaluate it on an environment of the "
            "same spaces."
        )


def check_takes_tasks(context: TrainingContext, task: Any) -> None:
    """Raise ConfigError where a run's environments take no tasks; makes one of them."""
    kind = kind_of(context.agent)
    if not kind.steps_environments:
        raise ConfigError(
            f"task = {task!r}: {context.agent} learns from recorded data and steps no environment. Give "
            "evaluations their task: run.evaluate(task=...)."
        )
    environments = make_environments(context.environment, np.arange(1), 0, vectorization_for(kind, context))
    try:
        environments.set_task(task)
    finally:
        environments.close()


def check_replay(there: bool, what: str) -> None:
    """Raise CheckpointError where a run has no replay, and so cannot do this."""
    if not there:
        raise CheckpointError(
            f"This run was loaded without its replay, to act only; it cannot {what}. Load a checkpoint that has one "
            "(best.etude has none where evaluate_workers evaluated), or start a new run from these weights: "
            "start_from=."
        )


def _check_actions(agent: Agent, spaces: Spaces) -> None:
    name, actions = str(agent), type(agent).actions
    if agent.bounded_actions and not bounded(spaces.action):
        others = fitting(spaces.action, kind_of(agent).uses_data)
        lacking = np.flatnonzero(~np.isfinite([spaces.action.low, spaces.action.high]).all(0)).tolist()
        raise SpaceError(
            f"{name} computes actions in [-1, 1], which are scaled to two finite bounds of each number; of this "
            f"environment's {describe(spaces.action)}, the numbers {lacking} have one or none. Give them bounds: "
            "wrappers=lambda env: gymnasium.wrappers.TransformAction(env, lambda action: action, gymnasium.spaces.Box("
            f"low, high, {spaces.action.shape})). " + (f"Or use {' or '.join(others)}." if others else "")
        )
    if type(spaces.action) not in actions:
        others = fitting(spaces.action, kind_of(agent).uses_data)
        wanted = " or ".join(space.__name__ for space in actions)
        raise SpaceError(
            f"{name} needs {wanted} actions; this environment has {describe(spaces.action)}. "
            + (f"Use {' or '.join(others)}." if others else "No algorithm of etude takes it: wrap the environment.")
        )
    if spaces.masked and type(spaces.action) in (Box, MultiBinary):
        raise SpaceError("An action mask needs Discrete or MultiDiscrete actions; remove it from this environment.")


def fitted(
    environment: Any, agent_for_spaces: Callable[[Spaces], tuple[str, Agent]]
) -> tuple[str, Agent, Any, Spaces, Translation]:
    """(name, agent, environment, spaces, translation): the agent for an environment, which holds its global state where
    the agent reads that, action masks where infos hold any, and the origins of large numbers where observations are
    normalised. agent_for_spaces: returns (name, agent)."""
    spaces, translation, environment = examine(environment)
    name, agent = agent_for_spaces(spaces)
    if isinstance(agent, MultiAgent) and agent.reads_state:
        spaces, translation, environment = examine(with_global_state(environment))
        name, agent = agent_for_spaces(spaces)
    every = agent.members.values() if isinstance(agent, PolicyAgents) else [agent]
    if any(getattr(own.config, "normalize_observation", False) for own in every):
        origins = with_origins_of(environment)
        if origins is not environment:
            spaces, translation, environment = examine(origins)
            name, agent = agent_for_spaces(spaces)
    if isinstance(environment, ConfiguredEnvironment) and not environment.masks and not environment.origins:
        environment = as_given(environment)  # nothing was found
    return name, agent, environment, spaces, translation


def agent_for(
    algorithm: str | Agent, environment: Any, config: Any, spaces: Spaces, policies: Any = None
) -> tuple[str, Agent]:
    """(name, agent). Without a config, the preset for this environment, or the defaults; over images, a `Conv` network
    in the place of the default one. policies: see `multi_agent_for`."""
    if isinstance(algorithm, Agent):
        if config is not None:
            raise ConfigError("config= goes with the name of an algorithm; an agent has one already.")
        name, agent = type(algorithm).__name__.lower(), algorithm
    else:
        agent_class, config_class = find(algorithm)
        if config is not None and not isinstance(config, config_class):
            raise ConfigError(f"{algorithm} takes a {config_class.__name__}; got {type(config).__name__}.")
        name = named(algorithm)
        agent = agent_class(config_for(name, environment) if config is None else config)
    return name, multi_agent_for(_for_images(_for_tokens(agent, spaces), spaces), spaces, policies)


def _for_tokens(agent: Agent, spaces: Spaces) -> Agent:
    """The agent; over tokens with a `Transformer` in the place of the network that its config has by itself, where it
    reads whole games."""
    default: Any = {field.name: field.default for field in dataclasses.fields(agent.config)}.get("network")
    windows = [leaf.context for _, leaf in leaves(spaces.observation) if isinstance(leaf, Tokens)]
    if not agent.reads_tokens or agent.config.network is not default or not windows:
        return agent
    default = default if isinstance(default, Transformer) else Transformer()
    fitted = dataclasses.replace(default, context=max(windows) + 1)
    return type(agent)(dataclasses.replace(agent.config, network=fitted))


def _for_images(agent: Agent, spaces: Spaces) -> Agent:
    """The agent; over images with a `Conv` that fits them, where its network is the one that its config has by itself.

    One that a user gave is another object, also where it is equal: it stays, but for filters that nobody gave. Warns of
    images of floats that become vectors.
    """
    default: Any = {field.name: field.default for field in dataclasses.fields(agent.config)}.get("network")
    network, filters = getattr(agent.config, "network", None), fitting_filters(spaces.observation, True)
    if filters is None or default is None or network is None:
        return agent
    if network is default and fitting_filters(spaces.observation) is None:
        path, image = next(leaf for leaf in leaves(spaces.observation) if is_float_image(leaf[1]))
        name = f" {'.'.join(map(str, path))!r}" if path else ""
        warnings.warn(
            f"The observation{name} is an image of {image.dtype}, {describe(image)}, which the default network reads "
            f"as one vector of {width(image):,} numbers. For convolutions give network=etude.Conv() (--network conv), "
            "or return uint8 from 0 to 255, a quarter of the memory; network=etude.Mlp() (--network mlp) keeps the "
            "vector.",
            stacklevel=2,
        )
        return agent
    layers: Any = layers_of(network)
    if network is default:
        fitted: Any = with_layers(network, Conv(filters, dueling=layers.dueling, noisy=layers.noisy))
    elif isinstance(network, ActorCritic):
        fitted = ActorCritic(*(_with_filters(own, filters) for own in (network.actor, network.critic)))
    else:
        fitted = _with_filters(network, filters)
    if fitted == network:
        return agent
    agent = copy.copy(agent)
    agent.config = dataclasses.replace(agent.config, network=fitted)
    return agent


def _with_filters(network: Any, filters: Filters) -> Any:
    """A network with these convolutions in the place of the default ones."""
    layers = layers_of(network)
    if not isinstance(layers, Conv) or layers.filters is not NATURE:
        return network
    return with_layers(network, dataclasses.replace(layers, filters=filters))


def multi_agent_for(agent: Agent, spaces: Spaces, policies: Any) -> Agent:
    """The agent itself for one agent, or what acts for several: itself where it can, else one of its class for each
    policy. policies: see `Policies`."""
    kind = kind_of(agent)
    if spaces.agents is None:
        if policies is not None:
            raise ConfigError("policies= says which policy drives which agent; this environment has one agent.")
        check_spaces(agent, spaces)
        return agent
    if agent.recorded:
        raise ConfigError(
            f"{agent} has a loss that reads recorded data ({', '.join(agent.recorded)}) of one agent; "
            "this environment has several. Add a term without data."
        )
    if not kind.multi_agent:
        raise ConfigError(
            f"{agent} learns from {kind.name} of one agent; this environment has several. Use an "
            "algorithm such as dqn, ppo or mappo."
        )
    team = (agent if isinstance(agent, MultiAgent) else Independent(agent)).with_policies(policies)
    check_team(team, spaces)
    return team
