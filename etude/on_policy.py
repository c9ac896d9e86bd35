"""The replay of agents that learn from one rollout of a policy and forget it: how its rows are kept, drawn and read."""

from __future__ import annotations

import numpy as np

from etude.agent import Agent
from etude.config import OnPolicyConfig
from etude.data import MEMORY
from etude.protocols import Engine
from etude.replay import (
    Advantages,
    AdvantageSequences,
    AgentAdvantages,
    Columns,
    Epochs,
    Ring,
    Selector,
    Unrolls,
    View,
)

Parts = tuple[Ring, Selector, View]


def advantages(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """Steps, for `count` environments. folder: see `Ring`."""
    estimate = Advantages if engine.spaces.agents is None else AgentAdvantages
    view = estimate(agent.config.gamma, agent.config.lambda_, engine.value)
    return _one_rollout(agent.config, engine, count, folder), Epochs(), view


def advantage_sequences(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """Parts of each environment's rollout."""
    length = agent.config.sequence_length
    view = AdvantageSequences(length, Advantages(agent.config.gamma, agent.config.lambda_, engine.value))
    return _one_rollout(agent.config, engine, count, folder), Columns(length), view


def unrolls(agent: Agent, engine: Engine, count: int, folder: str | None) -> Parts:
    """The whole rollout of each environment."""
    return _one_rollout(agent.config, engine, count, folder), Columns(), Unrolls(agent.config.gamma)


def _one_rollout(config: OnPolicyConfig, engine: Engine, count: int, folder: str | None) -> Ring:
    each = () if engine.spaces.agents is None else (len(engine.spaces.agents),)
    extras = {"log_prob": (each, np.dtype(np.float32))}
    if engine.memory:
        extras[MEMORY] = ((engine.memory,), np.dtype(np.float32))
    return Ring(engine.spaces, config.rollout * count, count, extras, reward_shape=each, folder=folder)
