"""Environments whose values are known."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

ALLOWED = {True: gym.spaces.Box(-1, 1, (1,)), False: gym.spaces.Discrete(2)}


class Forever(gym.Env):
    """A reward of 1 at every step of a world that does not end; a clock stops it after every 5 steps.

    Its value is 1 / (1 - gamma). Told that the world ended when the clock did, an agent finds less: the observation
    does not tell the time, so a fifth of all steps leads nowhere, and the value is 1 / (1 - 0.8 gamma).
    """

    observation_space = gym.spaces.Box(0, 1, (2,))
    clock = 5

    def __init__(self, continuous: bool, mistaken: bool = False):
        self.action_space, self.mistaken = ALLOWED[continuous], mistaken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([1.0, 0.5], np.float32), {}

    def step(self, action):
        self.time += 1
        over = self.time == self.clock
        return np.array([1.0, 0.5], np.float32), 1.0, over and self.mistaken, over and not self.mistaken, {}


class Sides(gym.Env):
    """Two steps: nothing, then a reward for the action that the observed side asks for: 1 at best, and the end.

    The best value of the second step is 1, of the first gamma. Box actions: the best is half of the side, and the
    reward falls with the square of the distance from it.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, continuous: bool):
        self.action_space = ALLOWED[continuous]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side, self.time = 1.0 if self.np_random.random() < 0.5 else -1.0, 0
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        if self.time < 2:
            return self._observation(), 0.0, False, False, {}
        if isinstance(self.action_space, gym.spaces.Box):
            reward = 1.0 - (float(action[0]) - 0.5 * self.side) ** 2
        else:
            reward = 1.0 if action == (self.side > 0) else -1.0
        return self._observation(), reward, True, False, {}

    def _observation(self):
        return np.array([self.side, self.time], np.float32)


class Cue(gym.Env):
    """The first observation shows which of two actions is paid for at the very end, `delay` steps later: 1 for that
    one, -1 for the other. All that is shown in between is the time that is left, and at last that it has run out. After
    bsuite's memory length experiment (Osband et al. 2020, arXiv:1908.03568).

    Who remembers gets 1. Whoever acts by the present observation acts alike for both cues, and gets 0 on average.
    side: the cue; None draws one for each episode.
    """

    observation_space = gym.spaces.Box(-1, 1, (3,))  # time left, whether it is now, the cue
    action_space = gym.spaces.Discrete(2)

    def __init__(self, delay: int, side: int | None = None):
        self.delay, self.side = delay, side

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)) if self.side is None else self.side, 0
        return self._observation(), {}

    def step(self, action):
        over = self.time == self.delay
        reward = (1.0 if action == self.cue else -1.0) if over else 0.0
        self.time += 1
        return self._observation(), reward, over, False, {}

    def _observation(self):
        shown = 2 * self.cue - 1 if self.time == 0 else 0
        return np.array([max(0.0, 1 - self.time / self.delay), self.time == self.delay, shown], np.float32)
