"""Per-actor exploration: each environment has its own epsilon or noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.explorer import ExplorerBase
from etude.explore.noise import ClippedNoise, UniformBox, noise_distribution, noisy, normal_numbers
from etude.explore.outputs import check_distribution, check_values
from etude.explore.values import epsilon_greedy, epsilon_greedy_distribution
from etude.losses.distributions import Categorical, Gaussian


class PerActor(ExplorerBase):
    """A parameter x from 0 to 1 is x ** (1 + alpha * i / (N - 1)) in environment i of N.

    Horgan et al. 2018, arXiv:1803.00933, section 4.1. environments: N, all environments of the run.
    columns: the environments that it acts for; None: all.
    """

    alpha: float
    environments: int
    columns: tuple[int, ...] | None
    state_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        checks.not_negative(self, "alpha")
        checks.counts(self, "environments")
        columns = np.arange(self.environments) if self.columns is None else np.array(self.columns, np.int64)
        object.__setattr__(self, "_powers", 1.0 + self.alpha * columns / max(1, self.environments - 1))

    def of(self, columns: np.ndarray) -> Self:
        """For these environments."""
        return replace(self, columns=tuple(np.asarray(columns).tolist()))  # type: ignore[type-var]

    def per_actor(self, number: float, count: int) -> np.ndarray:
        """The parameter [count] of the first of the environments that it acts for."""
        return number ** self._powers[:count]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class PerActorEpsilonGreedy(PerActor):
    """Environment i of N takes a random action with probability epsilon ** (1 + alpha * i / (N - 1)), else the best:
    see `PerActor`. total: environment steps of the run, for a schedule."""

    epsilon: float | Linear
    alpha: float
    environments: int
    total: int = 0
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For all of the environments that it is for, or the first of them."""
        values, free = check_values(output, "PerActorEpsilonGreedy")
        epsilon = self.per_actor(at(self.epsilon, step, self.total), len(noise))
        return Choice(epsilon_greedy(values, free, noise, epsilon), {})

    def distribution(self, output: Any, step: int) -> Categorical:
        values, free = check_values(output, "PerActorEpsilonGreedy")
        epsilon = self.per_actor(at(self.epsilon, step, self.total), len(values))
        return epsilon_greedy_distribution(values, free, epsilon)


@dataclass(frozen=True)
class PerActorGaussianNoise(ClippedNoise, PerActor):
    """`GaussianNoise` whose deviation is std ** (1 + alpha * i / (N - 1)) in environment i of N: see `PerActor`.

    std: from 0 to 1, for actions in [-1, 1]. total, random_steps: as in `GaussianNoise`.
    """

    std: float | Linear
    alpha: float
    environments: int
    total: int = 0
    random_steps: int = 0
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "std")
        checks.not_negative(self, "random_steps")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return normal_numbers(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For all of the environments that it is for, or the first of them."""
        action = check_distribution(output, "PerActorGaussianNoise").mode()
        return noisy(action, self._deviation(step, len(noise)), noise, step < self.random_steps)

    def distribution(self, output: Any, step: int) -> Gaussian | UniformBox:
        """Before actions are clipped."""
        action = check_distribution(output, "PerActorGaussianNoise").mode()
        return noise_distribution(action, self._deviation(step, len(action)), step < self.random_steps)

    def _deviation(self, step: int, count: int) -> np.ndarray:
        """[count, 1] float32."""
        return self.per_actor(at(self.std, step, self.total), count).astype(np.float32)[:, None]
