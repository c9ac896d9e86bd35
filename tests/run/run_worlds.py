"""Environments that tell which of them they are, that count, and that fail when they are told to."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np

from etude.base.seeding import episode_seed

SCALE = 2.0**-16


class Labelled(gym.Env):
    """Its observation tells the episode (by its seed, in two halves) and the time; the reward follows from both.

    An episode takes 3 to 9 steps; the odd seeds terminate, the even ones are truncated.
    """

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)

    def __init__(self, continuous: bool = False):
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_of_episode, self.time = seed or 0, 0
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        over = self.time == length_of(self.seed_of_episode)
        terminates = self.seed_of_episode % 2 == 1
        reward = reward_of(self.seed_of_episode, self.time)
        return self._observation(), reward, over and terminates, over and not terminates, {}

    def _observation(self):
        return np.array([self.seed_of_episode >> 16, self.seed_of_episode & 0xFFFF, self.time], np.float32) * SCALE


def length_of(seed: int) -> int:
    """The steps of the episode with this seed."""
    return 3 + seed % 7


def reward_of(seed: int, time: int) -> float:
    """The reward of the step that ends at `time`."""
    return seed % 11 + time / 16


def label_of(observation: np.ndarray) -> tuple[int, int]:
    """(seed, time) of an observation."""
    high, low, time = np.rint(observation / SCALE).astype(int)
    return int(high << 16 | low), int(time)


def labels(run_seed: int, environments: int, episodes: int) -> dict[int, tuple[int, int]]:
    """(environment, episode) by the episode's seed."""
    pairs = [(environment, episode) for environment in range(environments) for episode in range(episodes)]
    return {episode_seed(run_seed, *pair): pair for pair in pairs}


class Counted(gym.Env):
    """Counts how many of its kind are open. It never ends by itself and is truncated after 10 steps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    counts: Counter = Counter()

    def __init__(self):
        self.counts["open"] += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(2, self.time / 10, np.float32), 1.0, False, self.time == 10, {}

    def close(self):
        self.counts["open"] -= 1


def made(path: Path) -> bool:
    """Whether it is this process that made the file: of several at once, one."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Failing(Counted):
    """At the first step number `at` of any of them, once, it does what `how` says; `once` is a file that remembers."""

    def __init__(self, how: str, at: int, once: Path | str):
        super().__init__()
        self.how, self.at, self.once, self.taken = how, at, Path(once), 0

    def step(self, action):
        self.taken += 1
        observation, reward, *rest = super().step(action)
        if self.taken == self.at and made(self.once):
            if self.how == "raise":
                raise ValueError("the gripper fell off")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                sys.exit("that was all")
            if self.how == "interrupt":
                raise KeyboardInterrupt
            observation, reward = {"observation": (observation * np.nan, reward), "reward": (observation, np.nan)}[
                self.how
            ]
        return observation, reward, *rest


class Drawing(Counted):
    """Draws from the generator that all share."""

    def step(self, action):
        observation, *rest = super().step(action)
        return np.float32(observation * random.random()), *rest


class HangsAtItsEnd(Counted):
    """Its `close` does not return."""

    def close(self):
        time.sleep(1000)


class Large(gym.Env):
    """Observations of more than a megabyte."""

    observation_space = gym.spaces.Box(0, 1, (300_000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(300_000, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(300_000, self.time / 10, np.float32), 1.0, self.time == 5, False, {}
