"""From the name of an algorithm, a config and spaces to an agent."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import find, named
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, describe, is_float_image
from etude.envs import ConfiguredEnvironment, Translation, as_given, examine, with_global_state, with_origins_of
from etude.multi_agent.by_policy import PolicyAgents
from etude.multi_agent.independent import Independent
from etude.multi_agent.policies import MultiAgent
from etude.networks import ActorCritic, Conv, layers_of, with_layers
from etude.networks.encoding import fitting_filters, leaves, width
from etude.networks.specs import NATURE, Filters
from etude.training.build.usable import check_spaces, check_team
from etude.training.kinds import kind_of


class FittedAgent(NamedTuple):
    """An agent, and the environment with what the agent reads of it."""

    algorithm: str
    agent: Agent
    environment: Any
    spaces: Spaces
    translation: Translation


def fitted(environment: Any, agent_for_spaces: Callable[[Spaces], tuple[str, Agent]]) -> FittedAgent:
    """The agent for an environment, which holds its global state where the agent reads that, action masks where infos
    hold any, and the origins of large numbers where observations are normalised. agent_for_spaces: returns (name,
    agent)."""
    spaces, translation, environment = examine(environment)
    name, agent = agent_for_spaces(spaces)
    if isinstance(agent, MultiAgent) and agent.reads_state:
        spaces, translation, environment = examine(with_global_state(environment))
        name, agent = agent_for_spaces(spaces)
    if any(getattr(own.config, "normalize_observation", False) for own in _each(agent)):
        origins = with_origins_of(environment)
        if origins is not environment:
            spaces, translation, environment = examine(origins)
            name, agent = agent_for_spaces(spaces)
    if isinstance(environment, ConfiguredEnvironment) and not environment.masks and not environment.origins:
        environment = as_given(environment)  # nothing was found
    return FittedAgent(name, agent, environment, spaces, translation)


def _each(agent: Agent) -> list[Agent]:
    return list(agent.members.values()) if isinstance(agent, PolicyAgents) else [agent]


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
    return name, multi_agent_for(_for_images(agent, spaces), spaces, policies)


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
        _warn_of_flat_images(spaces)
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


def _warn_of_flat_images(spaces: Spaces) -> None:
    path, image = next(leaf for leaf in leaves(spaces.observation) if is_float_image(leaf[1]))
    name = f" {'.'.join(map(str, path))!r}" if path else ""
    warnings.warn(
        f"The observation{name} is an image of {image.dtype}, {describe(image)}, which the default network reads as "
        f"one vector of {width(image):,} numbers. For convolutions give network=etude.Conv() (--network conv), or "
        "return uint8 from 0 to 255, a quarter of the memory; network=etude.Mlp() (--network mlp) keeps the vector.",
        stacklevel=2,
    )


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
            f"{type(agent).__name__} has a loss that reads recorded data ({', '.join(agent.recorded)}) of one agent; "
            "this environment has several. Add a term without data."
        )
    if not kind.multi_agent:
        raise ConfigError(
            f"{type(agent).__name__} learns from {kind.name} of one agent, sequences or recorded data; this "
            "environment has several. Use an algorithm such as dqn, ppo or mappo."
        )
    team = (agent if isinstance(agent, MultiAgent) else Independent(agent)).with_policies(policies)
    check_team(team, spaces)
    return team


def config_for(algorithm: str, environment: Any = None, /, **changes: Any) -> Any:
    """The preset config of an algorithm for an environment id, or its default config, with these fields changed."""
    _, config_class = find(algorithm)
    name = named(algorithm)
    preset = presets.lookup(name, environment) if isinstance(environment, str) else None
    return config_class(**{**(preset.config if preset else {}), **changes})
