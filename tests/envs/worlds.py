"""Environments of the tests."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Counter(gym.Env):
    """Observes (environment, episode, t). Episodes of 3 to 6 steps, truncated where their number is odd."""

    observation_space = Box(-1, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, number: int = 0):
        self.number, self.episode, self.t = number, -1, 0

    def _observe(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        ended = self.t >= 3 + (self.episode + self.number) % 4
        odd = self.episode % 2 == 1
        return self._observe(), float(self.t), ended and not odd, ended and odd, {}


class Counters:
    """Makes Counters that are numbered in the order of their making."""

    def __init__(self):
        self.made = 0

    def __call__(self) -> Counter:
        self.made += 1
        return Counter(self.made - 1)


class Scripted(gym.Env):
    """Returns what a test tells it to: `resets` and `steps` are functions of the number of the call."""

    def __init__(self, observation_space=None, action_space=None, reset=None, step=None):
        self.observation_space = observation_space or Box(-10, 10, (2,), np.float32)
        self.action_space = action_space or Discrete(2)
        self._on_reset = reset or (lambda seed: (np.zeros(2, np.float32), {}))
        self._on_step = step or (lambda t: (np.zeros(2, np.float32), 0.0, False, False, {}))
        self.actions: list = []
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._on_reset(seed)

    def step(self, action):
        self.actions.append(action)
        self.t += 1
        return self._on_step(self.t)


def always(*values):
    """A script that gives the same five values at every step."""
    return lambda t: values
