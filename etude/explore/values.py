"""Explorers over action values [N, n], for Discrete actions. Values of -1e8 or less are never chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import checks
from etude.data import Choice
from etude.explore.outputs import allowed, check_values, is_plain
from etude.losses.distributions import Categorical
from etude.schedules import Linear, at
from etude.spaces import Space


@dataclass(frozen=True)
class EpsilonGreedy:
    """A random action with probability epsilon, each allowed one alike, else the best. Watkins 1989.

    Of equally good actions the first is taken, as in DQN's code and its descendants; they do not share their chance.
    total: environment steps of the run, for a schedule.
    """

    epsilon: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.fractions(self, "epsilon")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int) -> Choice:
        values = check_values(output, "EpsilonGreedy")
        plain = is_plain(values)
        free = None if plain else allowed(values)
        action = values.argmax(1)
        exploring = noise[:, 0] < at(self.epsilon, step, self.total)
        if exploring.any():
            action = np.where(exploring, _pick(noise[:, 1], values.shape[1], free), action)
        return Choice(action, {})


def greedy(values: np.ndarray) -> np.ndarray:
    """The best of the action values [N, n], [N]."""
    if not is_plain(values):
        allowed(values)
    return values.argmax(1)


def _pick(noise: np.ndarray, n: int, free: np.ndarray | None) -> np.ndarray:
    """A uniform choice among n actions, or among those that are free."""
    # noise <= 1 - 2**-24: the product is below n in float32 too.
    if free is None:
        return (noise * n).astype(np.int64)
    rank = (noise * free.sum(1)).astype(np.int64)
    return (free.cumsum(1) > rank[:, None]).argmax(1)


@dataclass(frozen=True)
class Boltzmann:
    """Actions with probabilities softmax(values / temperature). Sutton 1990, doi:10.1016/B978-1-55860-141-3.50030-4.

    temperature: in the units of the values. total: environment steps of the run, for a schedule.
    """

    temperature: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.positive(self, "temperature")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 1), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int) -> Choice:
        values = _preferences(output, "Boltzmann")
        return Choice(Categorical(values / at(self.temperature, step, self.total)).sample(noise), {})


@dataclass(frozen=True)
class BoltzmannGumbel:
    """The best action after Gumbel noise of size `scale` is added to the values.

    The chances are those of `Boltzmann` at temperature `scale`: Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030.
    """

    scale: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.positive(self, "scale")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, int(action_space.n)), np.float32)  # type: ignore[attr-defined]

    def __call__(self, output: Any, noise: np.ndarray, step: int) -> Choice:
        values = _preferences(output, "BoltzmannGumbel")
        uniform = (
            noise.astype(np.float64) + 2.0**-25
        )  # the middle of each step of float32, so that no logarithm is infinite
        gumbel = -np.log(-np.log(uniform))
        return Choice((values + at(self.scale, step, self.total) * gumbel).argmax(1), {})


def _preferences(output: Any, explorer: str) -> np.ndarray:
    values = check_values(output, explorer)
    return values if is_plain(values) else np.where(allowed(values), values, -np.inf)
