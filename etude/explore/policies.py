"""Explorers over what an agent's policy is: its best actions, or samples of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.data import Choice
from etude.explore.outputs import check_distribution, check_values
from etude.explore.values import greedy
from etude.spaces import Box, Space


@dataclass(frozen=True)
class Greedy:
    """The best action of action values [N, n] (the first of equals), or the mode of a distribution."""

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return np.empty((steps, 0), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int) -> Choice:
        if isinstance(output, np.ndarray):
            return Choice(greedy(check_values(output, "Greedy")), {})
        return Choice(check_distribution(output, "Greedy").mode(), {})


@dataclass(frozen=True)
class Sample:
    """A sample of a distribution, with its log probability as the extra `log_prob` [N] float32.

    Samples of an unbounded policy are not clipped: their probability belongs to them as they are; environments clip.
    """

    log_prob: bool = True  # False for algorithms that do not read it, which saves half of the time

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        size = math.prod(action_space.shape or ())  # the shape of Discrete is (): one number
        draw = rng.standard_normal if isinstance(action_space, Box) else rng.random
        return draw((steps, size), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int) -> Choice:
        distribution = check_distribution(output, "Sample")
        if not self.log_prob:
            return Choice(distribution.sample(noise), {})
        action, log_prob = distribution.sample_with_log_prob(noise)
        return Choice(action, {"log_prob": log_prob})
