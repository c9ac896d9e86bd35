"""A point that is to reach a goal in the plane: the smallest world with goals, for hindsight replay.

After the shape of the goal environments of Plappert et al. 2018, arXiv:1802.09464, section 1.4.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from etude.base.errors import ConfigError

SIDE = 5.0  # x and y are from 0 to here
STEP = 1.0  # the longest step along each coordinate
STEPS = 50  # after which an episode is truncated
PIXELS = 160  # the side of a frame


class PointWorld(gym.Env[Any, Any]):
    """Walk from (0, 0) to a goal near (4, 4).

    Observation: Dict of `observation` and `achieved_goal`, both the position [2], and `desired_goal` [2], all float32.
    Action: a step [2], clipped to -1..1 in each coordinate. The position stays within 0..5 in both.
    Goal: uniform in (3.5..4.5)^2. Reward: 0 within 0.15 of the goal (Euclidean), which ends the episode as terminated,
    else -1. After 50 steps the episode is truncated.
    """

    tolerance: float = 0.15  # nearer than this, the goal is reached
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None):
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"PointWorld draws frames, render_mode='rgb_array', and no window; got {render_mode!r}.")
        self.render_mode = render_mode
        plane = Box(0.0, SIDE, (2,), np.float32)
        self.observation_space: Dict = Dict({"observation": plane, "achieved_goal": plane, "desired_goal": plane})
        self.action_space: Box = Box(-STEP, STEP, (2,), np.float32)
        self._position, self._goal, self._t = np.zeros(2, np.float32), np.zeros(2, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Back to (0, 0), with a new goal."""
        super().reset(seed=seed)
        self._position = np.zeros(2, np.float32)
        self._goal = self.np_random.uniform(3.5, 4.5, 2).astype(np.float32)
        self._t = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See the class."""
        moved = self._position + np.clip(np.asarray(action, np.float32), -STEP, STEP)
        self._position = np.clip(moved, 0, SIDE)
        self._t += 1
        reward, reached = self.compute_reward(self._position, self._goal), self.reached(self._position, self._goal)
        return self._observe(), float(reward), bool(reached), bool(self._t >= STEPS and not reached), {}

    @staticmethod
    def reached(achieved_goal: np.ndarray, desired_goal: np.ndarray) -> np.ndarray:
        """Whether positions [..., 2] are nearer than 0.15 to goals [..., 2]: [...] bool."""
        return np.linalg.norm(np.asarray(achieved_goal) - np.asarray(desired_goal), axis=-1) < PointWorld.tolerance

    @staticmethod
    def compute_reward(achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any = None) -> np.ndarray:
        """The rewards of positions [..., 2] with goals [..., 2]: [...] float32, 0 where reached, else -1. `info` is not
        read; it is there because goal environments pass it."""
        return np.where(PointWorld.reached(achieved_goal, desired_goal), 0.0, -1.0).astype(np.float32)

    @staticmethod
    def compute_terminated(achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any = None) -> np.ndarray:
        """Whether positions [..., 2] end an episode with goals [..., 2]: where they reach them, [...] bool."""
        return PointWorld.reached(achieved_goal, desired_goal)

    def render(self) -> np.ndarray | None:
        """The plane seen from above [160, 160, 3] uint8: the point in blue, the goal in green; y grows upwards."""
        if self.render_mode is None:
            return None
        frame = np.full((PIXELS, PIXELS, 3), 255, np.uint8)
        rows, columns = np.mgrid[0:PIXELS, 0:PIXELS]
        x, y = (columns + 0.5) * SIDE / PIXELS, SIDE - (rows + 0.5) * SIDE / PIXELS
        discs = (self._goal, self.tolerance, (60, 170, 80)), (self._position, 0.1, (40, 80, 200))
        for centre, radius, colour in discs:
            frame[np.hypot(x - centre[0], y - centre[1]) <= radius] = colour
        return frame

    def _observe(self) -> dict[str, np.ndarray]:
        here = self._position.copy
        return {"observation": here(), "achieved_goal": here(), "desired_goal": self._goal.copy()}
