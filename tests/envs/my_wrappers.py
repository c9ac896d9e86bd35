"""Wrappers that tests name, and one that they give as a callable."""

import gymnasium as gym
import numpy as np


class Doubled(gym.ObservationWrapper):
    """Observes twice as much."""

    def __init__(self, env):
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gym.spaces.Box(2 * space.low, 2 * space.high, dtype=np.float32)

    def observation(self, observation):
        return (2 * observation).astype(np.float32)


class Shifted(gym.ObservationWrapper):
    """Observes one more."""

    def __init__(self, env, by=1):
        super().__init__(env)
        space, self.by = env.observation_space, by
        self.observation_space = gym.spaces.Box(space.low + by, space.high + by, dtype=np.float32)

    def observation(self, observation):
        return (observation + self.by).astype(np.float32)


class Room(gym.Env):
    """Observes its size."""

    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, size=1, name="plain", render_mode=None):
        self.size, self.name, self.render_mode = size, name, render_mode
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action):
        self.time += 1
        return self._see(), float(self.size), False, self.time == 4, {}

    def render(self):
        return np.full((16, 16, 3), self.size, np.uint8)

    def _see(self):
        return np.full(1, self.size, np.float32)
