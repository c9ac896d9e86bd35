"""Epsilon-greedy that differs from environment to environment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from etude import checks
from etude.data import Choice
from etude.explore.outputs import check_values
from etude.explore.values import epsilon_greedy
from etude.schedules import Linear, at
from etude.spaces import Space


@dataclass(frozen=True)
class SpreadEpsilonGreedy:
    """Environment i of N takes a random action with probability epsilon ** (1 + alpha * i / (N - 1)), else the best.

    Horgan et al. 2018, arXiv:1803.00933, section 4.1. N: `environments`, all those of the run.
    columns: the numbers of those that it is asked for; None: all. total: environment steps of the run, for a schedule.
    """

    epsilon: float | Linear
    alpha: float
    environments: int
    total: int = 0
    columns: tuple[int, ...] | None = None
    _powers: np.ndarray = field(init=False, compare=False, repr=False)  # [columns]
    memory: ClassVar[int] = 0

    def __post_init__(self) -> None:
        checks.fractions(self, "epsilon")
        checks.not_negative(self, "alpha")
        checks.counts(self, "environments")
        columns = np.arange(self.environments) if self.columns is None else np.array(self.columns, np.int64)
        object.__setattr__(self, "_powers", 1.0 + self.alpha * columns / max(1, self.environments - 1))

    def of(self, columns: np.ndarray) -> SpreadEpsilonGreedy:
        """For these environments."""
        return replace(self, columns=tuple(np.asarray(columns).tolist()))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, memory: np.ndarray) -> Choice:
        """For all of the environments that it is for, or the first of them."""
        values = check_values(output, "SpreadEpsilonGreedy")
        epsilon = at(self.epsilon, step, self.total) ** self._powers[: len(noise)]
        return Choice(epsilon_greedy(values, noise, epsilon), {})
