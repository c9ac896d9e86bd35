"""The replay of each kind of agent: how its rows are kept, drawn and read."""

from __future__ import annotations

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import MEMORY
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Spaces, zeros
from etude.config import (
    EpisodesConfig,
    OffPolicyConfig,
    OnPolicyConfig,
)
from etude.protocols import Engine, Replay
from etude.replay import (
    Advantages,
    AdvantageSequences,
    Buffer,
    Columns,
    Epochs,
    GradientQueue,
    MultiAgentAdvantages,
    MultiAgentTransitions,
    OneStep,
    Prioritised,
    Returns,
    Ring,
    Rounds,
    Scores,
    Selector,
    Sequences,
    Uniform,
    Unrolls,
    View,
    WholeReturns,
)
from etude.training.build.actor_priorities import transitions

Parts = tuple[Ring, Selector, View]


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
        return GradientQueue()
    make = {
        "transitions": _transitions,
        "sequences": _sequences,
        "advantages": _advantages,
        "advantage_sequences": _advantage_sequences,
        "demonstrations": _advantages,  # the expert comes later: `recorded.show`
        "unrolls": _unrolls,
    }[agent.learns_from]
    return Buffer(*make(agent, engine, count, folder), generator(seed, "replay"))


def _transitions(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    config, several = agent.config, engine.spaces.agents is not None
    each = (len(engine.spaces.agents),) if several else ()
    ring = Ring(engine.spaces, config.buffer_size, count, {}, reward_shape=each, folder=folder)
    view = MultiAgentTransitions(config.gamma, config.n_step) if several else transitions(config)
    return ring, _off_policy_selector(config, ring), view


def _sequences(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    config = agent.config
    extras = {MEMORY: ((engine.memory,), np.dtype(np.float32))} if config.stored_state else {}
    ring = Ring(engine.spaces, config.buffer_size, count, extras, folder=folder)
    return ring, _off_policy_selector(config, ring), Sequences(config.gamma, config.sequence_length, config.burn_in)


def _off_policy_selector(config: OffPolicyConfig, ring: Ring) -> Selector:
    return Prioritised(ring.rows, config.priority_exponent) if config.priority_exponent else Uniform()


def _advantages(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """Steps, for `count` environments. folder: see `Ring`."""
    estimate = Advantages if engine.spaces.agents is None else MultiAgentAdvantages
    view = estimate(agent.config.gamma, agent.config.gae_lambda, engine.value)
    return _one_rollout(agent.config, engine, count, folder), Epochs(), view


def _advantage_sequences(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """Parts of each environment's rollout."""
    length = agent.config.sequence_length
    view = AdvantageSequences(length, Advantages(agent.config.gamma, agent.config.gae_lambda, engine.value))
    return _one_rollout(agent.config, engine, count, folder), Columns(length), view


def _unrolls(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """The whole rollout of each environment."""
    return _one_rollout(agent.config, engine, count, folder), Columns(), Unrolls(agent.config.gamma)


def _one_rollout(config: OnPolicyConfig, engine: Engine, count: int, folder: str | None) -> Ring:
    each = () if engine.spaces.agents is None else (len(engine.spaces.agents),)
    extras = {"log_prob": (each, np.dtype(np.float32))}
    if engine.memory:
        extras[MEMORY] = ((engine.memory,), np.dtype(np.float32))
    return Ring(engine.spaces, config.rollout_length * count, count, extras, reward_shape=each, folder=folder)


def recorded_replay_for(
    agent: Agent, engine: Engine, seed: int, transitions: int, folder: str | None, stream: str = "replay"
) -> Buffer:
    """The replay that so many recorded transitions fill. stream: of the run's generators, for what is drawn."""
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    ring = Ring(engine.spaces, transitions + 1, folder=folder)
    gamma = agent.config.gamma
    view = WholeReturns(gamma) if agent.learns_from == "returns" else OneStep(gamma)
    return Buffer(ring, Uniform(), view, generator(seed, stream))


def example_bytes(agent: Agent, spaces: Spaces) -> int:
    """Bytes of one example in a batch."""
    transition = 2 * trees.count_bytes(zeros(spaces.observation)) + trees.count_bytes(zeros(spaces.action)) + 24
    shown = 2 if agent.learns_from == "demonstrations" else 1  # the expert's beside it
    return transition * shown * agent.config.example_length
