"""CartPole whose velocities are hidden: the smallest task that needs a memory and is otherwise well known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

POSITIONS = [0, 2]  # of what CartPole-v1 observes: the cart's position and the pole's angle


class WithoutVelocities(gym.ObservationWrapper):
    """Gymnasium's CartPole-v1, of which only the cart's position and the pole's angle are observed [2], float32: which
    way either moves is seen from two observations. Otherwise as CartPole-v1, whose best return is 500.

    render_mode: as of CartPole-v1.
    """

    def __init__(self, render_mode: str | None = None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        whole = self.env.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[POSITIONS], whole.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """The two positions of [4]."""
        return observation[POSITIONS]
