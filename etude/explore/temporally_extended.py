"""Temporally extended exploration: random actions are repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.outputs import check_values
from etude.explore.stateless import Alike
from etude.explore.values import random_actions

LONGEST = 10_000  # steps


@dataclass(frozen=True)
class EpsilonZGreedy(Alike):
    """The best action, or with probability epsilon a random one that is repeated for n steps, where n is drawn from a
    zeta distribution: P(n) is proportional to n**-mu. Dabney, Ostrovski & Barreto 2021, arXiv:2006.01782.

    An action ends early with its episode, and where it is forbidden. total: environment steps of the run, for a
    schedule. mu: above 1; the paper's is 2, for which one action in two hundred lasts for more than a hundred steps.
    """

    epsilon: float | Linear
    mu: float = 2.0
    total: int = 0
    state_size = 2  # the repeated action, and for how many more steps

    def __post_init__(self) -> None:
        checks.fractions(self, "epsilon")
        if not 1 < self.mu < np.inf:
            raise ConfigError(f"EpsilonZGreedy: mu = {self.mu}; expected a finite number above 1.")
        weight = np.arange(1, LONGEST + 1, dtype=np.float64) ** -self.mu
        object.__setattr__(self, "_at_most", np.cumsum(weight) / weight.sum())  # [n - 1] the chance of n steps or fewer

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 3), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        values, free = check_values(output, "EpsilonZGreedy")
        action, left = np.nan_to_num(state).astype(np.int64).T
        repeating = left > 0
        if free is not None:
            repeating &= np.take_along_axis(free, action[:, None], 1)[:, 0]
        begins = ~repeating & (noise[:, 0] < at(self.epsilon, step, self.total))
        fresh = np.where(begins, random_actions(noise[:, 1], values.shape[1], free), values.argmax(1))
        length = 1 + np.searchsorted(self._at_most, noise[:, 2], side="right")  # type: ignore[attr-defined, call-overload]
        action = np.where(repeating, action, fresh)
        state[:] = np.stack([action, np.where(repeating, left - 1, np.where(begins, length - 1, 0))], 1)
        return Choice(action, {})
