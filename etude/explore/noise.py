"""Explorers that add noise to continuous actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.outputs import check_distribution
from etude.explore.stateless import StatelessExplorer


@dataclass(frozen=True)
class GaussianNoise(StatelessExplorer):
    """The mode of a distribution [N, A], such as `Deterministic`, plus normal noise, clipped to [-1, 1].

    Fujimoto et al. 2018, arXiv:1802.09477.
    std: in canonical actions, whose whole range is 2. total: environment steps of the run, for a schedule.
    random_steps: environment steps at the start of the run in which actions are uniform in [-1, 1] instead.
    """

    std: float | Linear
    total: int = 0
    random_steps: int = 0

    def __post_init__(self) -> None:
        checks.not_negative(self, "std", "random_steps")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return normal_numbers(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        action = check_distribution(output, "GaussianNoise").mode()
        return noisy(action, at(self.std, step, self.total), noise, step < self.random_steps)


def noisy(action: np.ndarray, std: float | np.ndarray, noise: np.ndarray, random: bool) -> Choice:
    """Actions [N, A] plus std times standard normal noise [N, A], clipped to [-1, 1]; or, from the same noise, random
    ones that are uniform there. std: a number, or [N, 1]."""
    if random:
        return Choice(_uniform(noise).reshape(action.shape), {})
    moved = action + (std * noise).reshape(action.shape)
    return Choice(np.minimum(np.maximum(moved, -1.0), 1.0), {})


_error_function = np.frompyfunc(math.erf, 1, 1)


def _uniform(noise: np.ndarray) -> np.ndarray:
    """Standard normal numbers as numbers that are uniform in [-1, 1]: twice their distribution function, minus 1."""
    return np.asarray(_error_function(noise * math.sqrt(0.5)), np.float32)


def normal_numbers(rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
    """A standard normal number for each number of an action: [steps, A] float32."""
    return rng.standard_normal((steps, math.prod(action_space.shape or ())), np.float32)
