"""Between the arrays of etude and what an agent gets: `action(s)` and `__call__(s, a, next_s, r, d)`.

r is the reward, of several steps the discounted sum. d says how much of gamma is left out of the next value: for one
step, 1 where the episode terminated, else 0, also where it was truncated; for m steps, 1 - gamma**(m - 1) where it goes
on. So `r + gamma * (1 - d) * next_value` is right for any number of steps.
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

Present = Callable[[Tree], Any]  # observations [..., ...] as the agent's methods get them
RewardModel = Callable[[np.ndarray, np.ndarray, Any, np.ndarray], np.ndarray]  # (inputs, a, next_s, d) to rewards

REWARD_INPUTS = "reward_inputs"  # the extra that holds what a learned reward is computed from
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def as_it_is(observation: Tree) -> Any:
    """The observation itself."""
    return observation


def with_goal(observation: Tree) -> np.ndarray:
    """Observation and desired goal in one vector [..., d + g]."""
    return np.concatenate([observation["observation"], observation["desired_goal"]], axis=-1)


def agents_only(observation: Tree) -> tuple:
    """What each of several agents observes."""
    return observation["agents"]


def is_joint(observation: Tree) -> bool:
    """Whether an observation, or a space, is that of several agents (see `envs.parallel`)."""
    parts = observation.spaces if isinstance(observation, Dict) else observation
    return isinstance(parts, dict) and set(parts) == {"agents", "terminated", "truncated"}


def present_for(space: Space) -> Present:
    """How observations of a space are given to an agent: goal observations as one vector, those of several agents as a
    tuple, all others as they are."""
    if is_joint(space):
        return agents_only
    if not is_goal_space(space):
        return as_it_is
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
class Arguments:
    """The arguments of `__call__` for stacked batches: trees of arrays [k, B, ...].

    gamma: reads the agent's present gamma. rewards: of a learned model (see `irl`), in the place of the environment's.
    """

    present: Present
    gamma: Callable[[], float]
    rewards: RewardModel | None = None

    def __call__(self, batch: Batch) -> tuple[Any, Any, Any, Any, Any]:
        """(s, a, next_s, r, d) of a batch."""
        gamma = self.gamma()
        left = batch.discount if gamma == 0 else batch.discount / np.float32(gamma)
        if is_joint(batch.next_observation):
            left = left[..., None] * (1.0 - batch.next_observation["terminated"])
        done = (1.0 - left).astype(np.float32)
        following, reward = self.present(batch.next_observation), batch.reward
        if self.rewards is not None:
            reward = self.rewards(batch.extras[REWARD_INPUTS], batch.action, following, done)
        return self.present(batch.observation), batch.action, following, reward, done


def tuples(present: Present) -> Present:
    """`present` for each part of the tuples that a view of several times returns."""
    if present is as_it_is:
        return present
    return lambda observation: tuple(present(part) for part in observation)
