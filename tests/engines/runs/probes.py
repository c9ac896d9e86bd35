"""Environments whose values and best policies are known, each for one thing that goes wrong.

`known(gamma)` gives [(observation, value of the best policy)], `best` the return of the best policy, or None where
every policy is as good.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from etude.envs import make_environments
from etude.explore import Greedy
from etude.training.evaluate import EvaluationRequest, evaluate

CHOICES, NUMBERS = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (1,))


class Probe(gym.Env):
    """Observations are vectors of 2 numbers. Where actions matter, `right` says how good one is, from 0 to 1: for
    choices, whether it is the second; for numbers, 1 minus the squared distance from 0.5."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    best: float | None = None

    def __init__(self, continuous: bool):
        self.action_space = NUMBERS if continuous else CHOICES

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.sign = 0, 1.0 if self.np_random.random() < 0.5 else -1.0
        return self.observation(), {}

    def step(self, action):
        before = self.observation()
        self.time += 1
        reward, terminated, truncated = self.outcome(action, before)
        return self.observation(), reward, terminated, truncated, {}

    def right(self, action, side: float = 1.0) -> float:
        if self.action_space is CHOICES:
            return float(action == (side > 0))
        return 1.0 - (float(action[0]) - 0.5 * side) ** 2

    def observation(self) -> np.ndarray:
        return np.array([0.0, 1.0], np.float32)

    def outcome(self, action, before: np.ndarray) -> tuple[float, bool, bool]:
        """(reward, terminated, truncated)."""
        raise NotImplementedError


class Constant(Probe):
    """One step, a reward of 1. Wrong where not even the loss works."""

    @staticmethod
    def known(gamma):
        return [([0, 1], 1.0)]

    def outcome(self, action, before):
        return 1.0, True, False


class Seen(Probe):
    """One step, the reward is what was observed: 1 or -1. Wrong where the observation does not reach the value."""

    @staticmethod
    def known(gamma):
        return [([1, 1], 1.0), ([-1, 1], -1.0)]

    def observation(self):
        return np.array([self.sign, 1.0], np.float32)

    def outcome(self, action, before):
        return self.sign, True, False


class Later(Probe):
    """Two steps, the reward at the second. Wrong where values are not discounted, or not bootstrapped."""

    @staticmethod
    def known(gamma):
        return [([0, 1], gamma), ([1, 1], 1.0)]

    def observation(self):
        return np.array([self.time, 1.0], np.float32)

    def outcome(self, action, before):
        return float(self.time == 2), self.time == 2, False


class Acting(Probe):
    """One step, the reward says how good the action was. Wrong where the policy does not follow the values."""

    best = 1.0

    @staticmethod
    def known(gamma):
        return [([0, 1], 1.0)]

    def outcome(self, action, before):
        return self.right(action), True, False


class Sides(Probe):
    """Two steps: nothing, then a reward for the action that the observed side asks for."""

    best = 1.0

    @staticmethod
    def known(gamma):
        return [([-1, 0], gamma), ([1, 0], gamma), ([-1, 1], 1.0), ([1, 1], 1.0)]

    def observation(self):
        return np.array([self.sign, min(self.time, 1)], np.float32)

    def outcome(self, action, before):
        return self.right(action, self.sign) * (self.time == 2), self.time == 2, False


class Forever(Probe):
    """A reward of 1 at every step of a world that does not end; a clock stops it after every 5. Wrong where truncation
    is taken for an end: the value would be 1 / (1 - 0.8 gamma), as the observation does not tell the time."""

    def __init__(self, continuous: bool, mistaken: bool = False):
        super().__init__(continuous)
        self.mistaken = mistaken  # says that the world ended when the clock did

    @staticmethod
    def known(gamma):
        return [([0, 1], 1 / (1 - gamma))]

    def outcome(self, action, before):
        over = self.time == 5
        return 1.0, over and self.mistaken, over and not self.mistaken


class Corridor(Probe):
    """Four places in a row; the right actions lead to the end, where the only reward is; any other stays. A clock stops
    it after 20 steps. Wrong where a reward that is far away is not found or not carried back."""

    best = 1.0

    @staticmethod
    def known(gamma):
        return [([place / 4, 1], gamma ** (3 - place)) for place in range(4)]

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return super().reset(seed=seed)

    def observation(self):
        return np.array([self.place / 4, 1.0], np.float32)

    def outcome(self, action, before):
        forward = action == 1 if self.action_space is CHOICES else float(action[0]) > 0
        self.place += bool(forward)
        return float(self.place == 4), self.place == 4, self.time == 20 and self.place < 4


class Short(Probe):
    """Episodes of one or two steps with a reward of 1 at each, one after the other. Wrong where rewards of the next
    episode are counted, as an n-step view easily does."""

    @staticmethod
    def known(gamma):
        return [([-1, 0], 1.0), ([1, 0], 1.0 + gamma), ([1, 1], 1.0)]

    def observation(self):
        return np.array([self.sign, min(self.time, 1)], np.float32)

    def outcome(self, action, before):
        return 1.0, self.time == (2 if self.sign > 0 else 1), False


class Chance(Probe):
    """One step: the right action earns 0 or 2 by chance, 1 at the mean; the others, less. Wrong where the value is not
    that of the mean, as the largest of noisy estimates is."""

    @staticmethod
    def known(gamma):
        return [([0, 1], 1.0)]

    def outcome(self, action, before):
        return self.right(action) + self.sign, True, False


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


def returns_for_both_cues(run: Any, delay: int) -> list[float]:
    """The return of the best policy of a run for either cue."""
    environments = [make_environments(partial(Cue, delay, side), np.arange(1), run_seed=1) for side in (0, 1)]
    return [evaluate(each, run.actor(), Greedy(), EvaluationRequest(1, seed=1)).mean for each in environments]


PROBES = (Constant, Seen, Later, Acting, Sides, Forever, Corridor, Short, Chance)
