"""Environments whose evaluations differ with the weights, and those that are slow, hang or raise."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np


class Coded(gym.Env):
    """Shows random numbers; the return of an episode of 12 steps has a digit for each action, so that other weights
    have other returns."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    pause = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action):
        time.sleep(self.pause)
        self.time += 1
        return self._observation(), float(action) * 2.0**-self.time, False, self.time == 12, {}

    def _observation(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Slow(Coded):
    pause = 0.02


class Tasked(Coded):
    """Its returns say which task it has."""

    task = 0

    def set_task(self, task):
        self.task = task

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 100.0 * self.task, *rest


class HangsOnce(Coded):
    """Its third step does not return, until a file says that it has been waited for."""

    def __init__(self, once):
        self.once = once

    def step(self, action):
        if self.time == 2 and not self.once.exists():
            self.once.touch()
            time.sleep(1000)
        return super().step(action)


class Waiting(Coded):
    """Its first step does not return."""

    def step(self, action):
        time.sleep(1000)


class Raising(Coded):
    def step(self, action):
        raise ValueError("the gripper fell off")
