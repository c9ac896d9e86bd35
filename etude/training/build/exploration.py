"""What a run explores with: the explorer that an agent's config describes, or the one that was given."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from etude.agent import ActsBy, Agent
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Space, Spaces
from etude.checkpoint.config_json import from_saved, to_json
from etude.config import OfflineConfig, OffPolicyConfig, SampledConfig
from etude.explore import (
    Boltzmann,
    BoltzmannGumbel,
    ByAgent,
    ByEnvironment,
    CorrelatedSample,
    Each,
    EpsilonGreedy,
    EpsilonZGreedy,
    GaussianNoise,
    Greedy,
    PerActorEpsilonGreedy,
    PerActorGaussianNoise,
    Sample,
)
from etude.multi_agent.policies import MultiAgent
from etude.protocols import Explorer

EXPLORED_BY = {"values": ["epsilon"], "actions": ["exploration_noise", "random_steps"], "distribution": []}  # fields
FITTING: dict[str, tuple[type, ...]] = {
    "values": (Boltzmann, BoltzmannGumbel, EpsilonGreedy, EpsilonZGreedy, Greedy, PerActorEpsilonGreedy),
    "actions": (GaussianNoise, Greedy, PerActorGaussianNoise),
    "distribution": (GaussianNoise, Greedy, Sample, CorrelatedSample),
}
"""Etude's own explorers, by what an agent acts by. They are data: a checkpoint holds them."""
# What is learned from by the probabilities of what was sampled.
BY_PROBABILITY = ("advantages", "advantage_sequences", "demonstrations", "gradients", "unrolls")
OWN = tuple({kind for kinds in FITTING.values() for kind in kinds})


def explorer_for(agent: Agent, spaces: Spaces, given: Explorer | None, total: int, count: int) -> Explorer:
    """What explores in a run of `total` environment steps of `count` environments."""
    if given is not None:
        return stretched(given, total)
    if isinstance(agent, MultiAgent) and spaces.agents is not None:
        actions = [own.action for own in spaces.agents.values()]
        return ByAgent([_described(agent, agent.acts_for(action), action, total, count) for action in actions], actions)
    return _described(agent, agent.acts_by, spaces.action, total, count)


def explorer_for_one(agent: Agent, spaces: Spaces, given: Explorer | None, total: int) -> Explorer:
    """What explores in one environment outside of a run of `total` steps. ConfigError where nothing is explored."""
    if given is None and isinstance(agent.config, OfflineConfig):
        raise ConfigError(f"explore = True: {type(agent).__name__} learns from recorded data and explores nothing.")
    explorer = explorer_for(agent, spaces, given, total, 1).of(np.arange(1))
    return explorer.inner if isinstance(explorer, ByEnvironment) else explorer  # its actor knows no environments


def _described(agent: Agent, acts_by: ActsBy, action: Space, total: int, count: int) -> Explorer:
    """What an agent's config describes for what it acts by."""
    config = agent.config
    alpha = config.exploration_exponent if isinstance(config, OffPolicyConfig) else 0.0
    if acts_by == "values":
        if alpha:
            return PerActorEpsilonGreedy(config.epsilon, alpha, count, total)
        return EpsilonGreedy(config.epsilon, total=total)
    if acts_by == "actions":
        noise, first = config.exploration_noise, config.random_steps
        if alpha:
            return PerActorGaussianNoise(noise, alpha, count, total, first)
        return GaussianNoise(noise, total=total, random_steps=first)
    if agent.learns_from == "fitness":
        return ByEnvironment(Greedy())  # what is explored are the weights
    if isinstance(config, SampledConfig) and config.exploration_correlation:
        return CorrelatedSample(config.exploration_correlation, math.prod(action.shape or ()))
    return Sample(log_prob=agent.learns_from in BY_PROBABILITY)


def stretched(explorer: Any, total: int) -> Any:
    """With its schedules over `total` environment steps, unless it names a total of its own."""
    if isinstance(explorer, Each):
        return Each(tuple(stretched(each, total) for each in explorer.explorers))
    if isinstance(explorer, OWN) and vars(explorer).get("total") == 0:
        return dataclasses.replace(explorer, total=total)
    return explorer


def check(agent: Agent, given: Any, spaces: Spaces) -> None:
    """Raise ConfigError where an explorer does not suit an agent, or none is given and its config describes none."""
    if given is None:
        if not isinstance(agent.config, OfflineConfig) or agent.learns_from == "advantages":
            _check_fields(agent)
        return
    if spaces.agents is not None:
        raise ConfigError("explorer= is for environments of one agent; several are explored as the config says.")
    for explorer in given.explorers if isinstance(given, Each) else (given,):
        if isinstance(explorer, type):
            raise ConfigError(f"explorer = {explorer.__name__} is a class; make one: {explorer.__name__}(...).")
        if isinstance(explorer, OWN):
            _check_fit(agent, explorer, spaces)


def _check_fields(agent: Agent) -> None:
    config = agent.config
    if agent.acts_by == "distribution" and isinstance(config, OffPolicyConfig) and config.exploration_exponent:
        raise ConfigError(
            f"{type(config).__name__}: exploration_exponent = {config.exploration_exponent}, but "
            f"{type(agent).__name__} samples its policy, in all environments alike. Leave it at 0."
        )
    missing = set(EXPLORED_BY[agent.acts_by]) - {field.name for field in dataclasses.fields(agent.config)}
    if missing:
        raise ConfigError(
            f"{type(agent).__name__} acts by {agent.acts_by}, which are explored as the config says in "
            f"{', '.join(sorted(missing))}; {type(agent.config).__name__} lacks it. Add the field, or give explorer=."
        )


def _check_fit(agent: Agent, explorer: Any, spaces: Spaces) -> None:
    fitting = FITTING[agent.acts_by]
    if agent.learns_from in BY_PROBABILITY:
        fitting = (Sample,)
    elif not isinstance(spaces.action, Box):
        fitting = tuple(kind for kind in fitting if kind not in (CorrelatedSample, GaussianNoise))
    if not isinstance(explorer, fitting):
        raise ConfigError(
            f"explorer = {explorer!r} does not suit {type(agent).__name__}, which acts by {agent.acts_by} and learns "
            f"from {agent.learns_from}. Give {' or '.join(kind.__name__ for kind in fitting)}, or leave it out."
        )
    if agent.learns_from in BY_PROBABILITY and not explorer.log_prob:
        raise ConfigError(
            f"explorer = {explorer!r} keeps no log probabilities, which {type(agent).__name__} learns from. Give "
            "Sample(log_prob=True), or leave it out."
        )


def described(given: Any) -> Any:
    """An explorer as plain data; one that etude does not know, by its text alone."""
    if given is None:
        return None
    known = isinstance(given, Each) and all(isinstance(each, OWN) for each in given.explorers) or isinstance(given, OWN)
    return to_json(given) if known else {"given": repr(given)}


def explorer_from(plain: Any) -> Any:
    """The explorer in a run's description; ConfigError where it has to be given again."""
    if plain is None:
        return None
    if "given" in plain:
        raise ConfigError(f"This run explores with {plain['given']}: give it again, as explorer=.")
    saved = Stored(plain, "description/explorer")
    found = from_saved(Any, saved, (*OWN, Each, Linear))
    if not isinstance(found, (*OWN, Each)):
        saved.refuse("an explorer")
    return found
