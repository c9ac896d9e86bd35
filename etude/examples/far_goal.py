"""A grid without walls in which the goal is as far away as the task says."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class FarGoal(gym.Env[np.ndarray, np.integer]):
    """Walk to a goal `distance` steps away, which lies in a new direction in every episode. The reward is 1 at the goal
    and 0 elsewhere; an episode terminates there, and is truncated after distance + distance // 4 + 2 steps.

    Observations: the offset to the goal, divided by 60, and its signs: [4] float32. Actions: east, west, north, south.
    The task, by `set_task`, is the distance of the episodes that follow. Someone who walks at random has next to no
    chance of reaching a goal 60 steps away in time.
    """

    observation_space: gym.spaces.Box = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space: gym.spaces.Discrete = gym.spaces.Discrete(4)
    moves: np.ndarray = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self, distance: int = 60):
        self.distance: int = distance

    def set_task(self, distance: int) -> None:
        """The distance of the goal, in steps, from the next reset on; ValueError for no such number."""
        if type(distance) is not int or distance < 1:
            raise ValueError(f"the task is {distance!r}; expected the distance of the goal, a whole number from 1")
        self.distance = distance

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        east = int(self.np_random.integers(-self.distance, self.distance + 1))
        north = (self.distance - abs(east)) * int(self.np_random.choice([-1, 1]))
        self.offset: np.ndarray = np.array([east, north])
        self.time: int = 0
        return self._observation(), {}

    def step(self, action: np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.offset = self.offset - self.moves[int(action)]
        self.time += 1
        reached = not self.offset.any()
        late = self.time >= self.distance + self.distance // 4 + 2
        return self._observation(), float(reached), reached, late and not reached, {}

    def _observation(self) -> np.ndarray:
        return np.concatenate([self.offset / 60, np.sign(self.offset)]).astype(np.float32)
