"""From the name of an algorithm, a config and spaces to an agent."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from etude import presets
from etude.agent import Agent
from etude.algorithms import OTHER_NAMES, check_spaces, check_team, find
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
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
from etude.multi_agent.independent import Independent
from etude.multi_agent.policies import MultiAgent
from etude.networks import Conv, layers_of, with_layers
from etude.networks.encoding import Image, split
from etude.networks.specs import filters_for

CONFIGS: dict[str, type[Config]] = {  # what an agent's config derives from, by what it learns from
    "transitions": OffPolicyConfig,
    "sequences": SequenceConfig,
    "advantages": OnPolicyConfig,
    "advantage_sequences": OnPolicySequenceConfig,
    "demonstrations": OnPolicyConfig,
    "gradients": GradientsConfig,
    "unrolls": UnrollsConfig,
    "episodes": EpisodesConfig,
    "fitness": EpisodesConfig,
}


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
        kind, config_kind = find(algorithm)
        if config is not None and not isinstance(config, config_kind):
            raise ConfigError(f"{algorithm} takes a {config_kind.__name__}; got {type(config).__name__}.")
        name = OTHER_NAMES.get(algorithm, algorithm)
        agent = kind(config_for(name, environment) if config is None else config)
    agent = multi_agent_for(_for_images(agent, spaces), spaces, policies)
    _check_config(agent)
    return name, agent


def _for_images(agent: Agent, spaces: Spaces) -> Agent:
    """The agent; over images with a `Conv` that fits them, where its network is the one that its config has by itself.

    One that a user gave is another object, also where it is equal: it stays.
    """
    images = [Image.of(part) for _, part in split(spaces.observation)[1]]
    default = {field.name: field.default for field in dataclasses.fields(agent.config)}.get("network")
    if not images or default is None or agent.config.network is not default:
        return agent
    network = agent.config.network
    filters = filters_for(min(min(image.height, image.width) for image in images))
    layers = layers_of(network)
    agent = copy.copy(agent)
    conv = Conv(filters, dueling=layers.dueling, noisy=layers.noisy)
    agent.config = dataclasses.replace(agent.config, network=with_layers(network, conv))
    return agent


def multi_agent_for(agent: Agent, spaces: Spaces, policies: Any) -> Agent:
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
    team = (agent if isinstance(agent, MultiAgent) else Independent(agent)).with_policies(policies)
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


def config_for(algorithm: str, environment: Any = None, /, **changes: Any) -> Any:
    """The preset config of an algorithm for an environment id, or its default config, with these fields changed."""
    _, config_kind = find(algorithm)
    name = OTHER_NAMES.get(algorithm, algorithm)
    preset = presets.lookup(name, environment) if isinstance(environment, str) else None
    return config_kind(**{**(preset.config if preset else {}), **changes})
