"""Converts etude's arrays to the arguments of an agent's `action(s)` and `__call__(s, a, next_s, r, d)`.

r is the reward, over several steps the discounted sum. d is the share of gamma that the next value loses: for one
step, 1 where the episode terminated, else 0, also where it was truncated; for m steps, 1 - gamma**(m - 1) where the
episode continues. So `r + gamma * (1 - d) * next_value` is right for any number of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Dict, Space, describe
from etude.base.trees import Tree

Conversion = Callable[[Tree], Any]  # observations [..., ...] as the agent's methods take them
RewardModel = Callable[[np.ndarray, np.ndarray, Any, np.ndarray], np.ndarray]  # (inputs, a, next_s, d) to rewards

REWARD_INPUTS = "reward_inputs"  # the extra that holds the inputs of a learned reward
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def unchanged(observation: Tree) -> Any:
    """The observation itself."""
    return observation


def with_goal(observation: Tree) -> np.ndarray:
    """Observation and desired goal in one vector [..., d + g]."""
    return np.concatenate([observation["observation"], observation["desired_goal"]], axis=-1)


def by_agent(observation: Tree) -> tuple[Any, ...]:
    """A tuple of what each agent observes."""
    return observation["agents"]


def is_joint(observation: Tree) -> bool:
    """Whether an observation, or a space, is that of several agents (see `environments.multi_agent`)."""
    parts = observation.spaces if isinstance(observation, Dict) else observation
    return isinstance(parts, dict) and set(parts) == {"agents", "terminated", "truncated"}


def conversion_for(space: Space) -> Conversion:
    """The conversion of a space's observations: goal observations become one vector, those of several agents a tuple,
    all others stay as they are."""
    if is_joint(space):
        return by_agent
    if not is_goal_space(space):
        return unchanged
    vectors = [space[name] for name in ("observation", "desired_goal")]  # type: ignore[index]
    if all(isinstance(part, Box) and len(part.shape) == 1 for part in vectors):
        return with_goal
    raise ConfigError(
        f"An agent gets observation and desired_goal of a goal environment as one vector; expected two flat Box "
        f"spaces, got {describe(space)}. Flatten them with a gymnasium.ObservationWrapper."
    )


def is_goal_space(space: Space) -> bool:
    """Whether observations are those of a goal environment."""
    return isinstance(space, Dict) and set(space.spaces) == set(GOAL_KEYS)


@dataclass
class LossArguments:
    """The arguments of `__call__` for stacked batches: trees of arrays [k, B, ...].

    gamma: reads the agent's present gamma. rewards: a learned model (see `irl`) that replaces the environment's.
    """

    convert: Conversion
    gamma: Callable[[], float]
    rewards: RewardModel | None = None

    def __call__(self, batch: Batch) -> tuple[Any, Any, Any, Any, Any]:
        """(s, a, next_s, r, d) of a batch."""
        gamma = self.gamma()
        left = batch.discount if gamma == 0 else batch.discount / np.float32(gamma)
        if is_joint(batch.next_observation):
            left = left[..., None] * (1.0 - batch.next_observation["terminated"])
        done = (1.0 - left).astype(np.float32)
        next_s, reward = self.convert(batch.next_observation), batch.reward
        if self.rewards is not None:
            reward = self.rewards(batch.extras[REWARD_INPUTS], batch.action, next_s, done)
        return self.convert(batch.observation), batch.action, next_s, reward, done


def of_each_time(convert: Conversion) -> Conversion:
    """`convert` for each part of the tuples that a view of several times returns."""
    if convert is unchanged:
        return convert
    return lambda observation: tuple(convert(part) for part in observation)
