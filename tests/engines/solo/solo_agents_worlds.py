"""Tiny environments for agents of one's own. Workers import this module: it knows no framework."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

OBSERVATION = Box(-10.0, 10.0, (3,), np.float32)


class Walk(gym.Env):
    """`length` steps, each of which earns `reward`; then the episode terminates, or is truncated."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = OBSERVATION
    action_space: Any = Discrete(2)

    def __init__(
        self, length: int = 5, reward: float = 1.0, truncates: bool = False, render_mode: str | None = "rgb_array"
    ):
        self.length, self.reward, self.truncates, self.render_mode = length, reward, truncates, render_mode
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        return self.observe(), self.reward, over and not self.truncates, over and self.truncates, {}

    def observe(self):
        return np.array([self.t / self.length, 1.0, self.np_random.normal()], np.float32)

    def render(self):
        frame = np.full((48, 48, 3), 255, np.uint8)
        frame[20:28, 6 * self.t : 6 * self.t + 6] = 30, 80, 200
        return frame


class OneWay(Walk):
    """Allows one action at each step, and raises at the other."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.info()

    def step(self, action):
        assert self.info()["action_mask"][action], f"action {action} is forbidden at step {self.t}"
        return *super().step(action)[:4], self.info()

    def info(self):
        return {"action_mask": np.arange(2) == self.t % 2}


class Pushed(Walk):
    """What is earned is the action, a number from -1 to 1."""

    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action[0]), terminated, truncated, info


class Reach(Pushed):
    """A goal environment: the position follows the actions, the goal is 0.5."""

    observation_space = Dict({
        "observation": Box(-10.0, 10.0, (2,), np.float32),
        "achieved_goal": Box(-10.0, 10.0, (1,), np.float32),
        "desired_goal": Box(-10.0, 10.0, (1,), np.float32),
    })  # fmt: skip

    def reset(self, *, seed=None, options=None):
        self.position = np.zeros(1, np.float32)
        return super().reset(seed=seed)

    def step(self, action):
        self.position = self.position + 0.3 * np.asarray(action, np.float32)
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(reward_done(self.position, np.array([0.5]))[0]), terminated, truncated, info

    def observe(self):
        here = np.array([self.position[0], self.t / self.length], np.float32)
        return {"observation": here, "achieved_goal": self.position, "desired_goal": np.array([0.5], np.float32)}


def reward_done(achieved, goal):
    """0 within 0.1 of the goal, else -1."""
    reached = np.abs(achieved - goal)[..., 0] < 0.1
    return np.where(reached, 0.0, -1.0).astype(np.float32), reached


class Old:
    """The interface of old Gym: a bare observation, four values, no seed."""

    observation_space, action_space = OBSERVATION, Discrete(2)

    def __init__(self):
        self.t = 0

    def reset(self):
        self.t = 0
        return np.zeros(3, np.float32)

    def step(self, action):
        self.t += 1
        return np.full(3, self.t / 5, np.float32), 1.0, self.t == 5, {}


class Pair:
    """Two agents, after PettingZoo's parallel interface: five steps; agent i earns i + 1 at each."""

    metadata = {"name": "pair"}

    def __init__(self):
        self.possible_agents, self.agents, self.t = ["a", "b"], [], 0

    def observation_space(self, agent):
        return OBSERVATION

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self._all(np.zeros(3, np.float32)), self._all({})

    def step(self, actions):
        self.t += 1
        seen, over = self._all(np.full(3, self.t / 5, np.float32)), self._all(self.t == 5)
        result = seen, {"a": 1.0, "b": 2.0}, over, self._all(False), self._all({})
        if self.t == 5:
            self.agents = []
        return result

    def render(self): ...
    def close(self): ...

    def _all(self, value):
        return dict.fromkeys(self.possible_agents, value)


class Faulty(Walk):
    """Does what `fault` says once, at its third step: where `flag` is no file yet, and after making it."""

    def __init__(self, fault: str, flag: str, at: int = 3):
        super().__init__()
        self.fault, self.flag, self.at, self.steps = fault, Path(flag), at, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and not self.flag.exists():
            self.flag.touch()
            FAULTS[self.fault]()
        return super().step(action)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(600)


def fail():
    raise ValueError("the door is stuck")


FAULTS = {"die": die, "hang": hang, "fail": fail}


class Locked(Walk):
    """Holds what can be neither copied nor pickled."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
