"""Which algorithms can use which spaces and recorded data."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.agent import Agent
from etude.algorithms import ALGORITHMS, for_several
from etude.base.errors import CheckpointError, ConfigError, SpaceError
from etude.base.spaces import Box, MultiBinary, Space, Spaces, bounded, describe
from etude.envs import make_environments
from etude.multi_agent.independent import Independent
from etude.multi_agent.policies import MultiAgent
from etude.training.kinds import TrainingContext, kind_for, kind_of


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
            f"{what} is read from collected steps; {type(agent).__name__} collects none: it learns from recorded data, "
            "or from gradients that workers compute. Leave it out."
        )


def check_same_spaces(spaces: Spaces, own: Spaces, name: str) -> None:
    """Raise SpaceError where an environment, which an agent is to be evaluated on, has other spaces than its own."""
    if spaces != own:
        found, expected = (f"{describe(each.observation)} and {describe(each.action)}" for each in (spaces, own))
        raise SpaceError(
            f"{name} observes and takes {found}; this run's agent, {expected}. Evaluate it on an environment of the "
            "same spaces."
        )


def check_takes_tasks(context: TrainingContext, task: Any) -> None:
    """Raise ConfigError where a run's environments take no tasks; makes one of them."""
    kind = kind_of(context.agent)
    if not kind.steps_environments:
        raise ConfigError(
            f"task = {task!r}: {type(context.agent).__name__} learns from recorded data and steps no environment. Give "
            "evaluations their task: run.evaluate(task=...)."
        )
    environments = make_environments(context.environment, np.arange(1), 0, kind.vectorization(context))
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
    name, actions = type(agent).__name__, type(agent).actions
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
