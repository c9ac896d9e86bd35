"""Explorers that add noise to continuous actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.data import CLIPPED, LOG_PROB, Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.explorer import ExplorerBase, StatelessExplorer
from etude.explore.outputs import check_distribution
from etude.losses.distributions import Gaussian

AT_BOUND = 1 - 1e-6  # from here on a number counts as clipped: files keep actions in the units of the environment


class ClippedNoise(ExplorerBase):
    """The base of explorers whose actions `noisy` makes. Their `distribution` is that of actions before they are
    clipped."""

    std: float | Linear

    @property
    def probability_extras(self) -> tuple[str, ...]:
        """None where a schedule reaches 0, as there is no density then."""
        least = min(self.std.values) if isinstance(self.std, Linear) else self.std
        return (LOG_PROB, CLIPPED) if least > 0 else ()

    def recorded_extras(self, output: Any, action: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """`log_prob` [N] float32 and `action_clipped` [N] uint8."""
        distribution = self.distribution(output, step)
        if isinstance(distribution, UniformBox):
            return {LOG_PROB: distribution.log_prob(action), CLIPPED: np.zeros(len(action), np.uint8)}
        clipped = (np.abs(action) >= AT_BOUND).any(-1).astype(np.uint8)
        return {LOG_PROB: clipped_log_prob(distribution, action).astype(np.float32), CLIPPED: clipped}


@dataclass(frozen=True)
class GaussianNoise(ClippedNoise, StatelessExplorer):
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

    def distribution(self, output: Any, step: int) -> Gaussian | UniformBox:
        """Before actions are clipped."""
        action = check_distribution(output, "GaussianNoise").mode()
        return noise_distribution(action, at(self.std, step, self.total), step < self.random_steps)


def noisy(action: np.ndarray, std: float | np.ndarray, noise: np.ndarray, random: bool) -> Choice:
    """Actions [N, A] plus std times standard normal noise [N, A], clipped to [-1, 1]; or, from the same noise, random
    ones that are uniform there. std: a number, or [N, 1]."""
    if random:
        return Choice(_uniform(noise).reshape(action.shape), {})
    moved = action + (std * noise).reshape(action.shape)
    return Choice(np.minimum(np.maximum(moved, -1.0), 1.0), {})


class UniformBox(NamedTuple):
    """Uniform distributions over [-1, 1], action [B, A]; noise [B, A] normal."""

    centre: np.ndarray  # [B, A], zeros

    def sample(self, noise: np.ndarray) -> np.ndarray:
        return _uniform(noise)

    def sample_with_log_prob(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _uniform(noise), self.log_prob(noise)

    def log_prob(self, action: np.ndarray) -> np.ndarray:
        return np.full(len(action), -math.log(2) * math.prod(self.centre.shape[1:]), np.float32)

    def mode(self) -> np.ndarray:
        return self.centre


def noise_distribution(action: np.ndarray, std: float | np.ndarray, random: bool) -> Gaussian | UniformBox:
    """What `noisy` samples, before it clips. Raises ConfigError where there is no noise, and so no density."""
    if random:
        return UniformBox(np.zeros_like(action))
    if not np.min(std) > 0:
        raise ConfigError(
            "Noise with a standard deviation of 0 leaves one action, which has no probability density. Estimate the "
            "policy softened by Gaussian noise (softened=0.1), or use fqe."
        )
    return Gaussian(action, np.broadcast_to(np.log(std), action.shape).astype(action.dtype))


def clipped_log_prob(distribution: Gaussian, action: np.ndarray) -> np.ndarray:
    """The log probability [N] of actions [N, A] that were clipped to [-1, 1]. Of numbers at a bound it counts all that
    is clipped there, a probability; of the others it is the density. (Tobin 1958, doi:10.2307/1907382: a censored
    normal distribution.) Minus infinity where that probability is below the least float64."""
    mean, std = distribution.mean.astype(np.float64), np.exp(distribution.log_std.astype(np.float64))
    scaled = (action - mean) / std
    density = -0.5 * scaled**2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    beyond = 0.5 * _complementary(np.sign(action) * scaled * math.sqrt(0.5)).astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.where(np.abs(action) < AT_BOUND, density, np.log(beyond)).sum(-1)


_complementary = np.frompyfunc(math.erfc, 1, 1)
_error_function = np.frompyfunc(math.erf, 1, 1)


def _uniform(noise: np.ndarray) -> np.ndarray:
    """Standard normal numbers as numbers that are uniform in [-1, 1]: twice their distribution function, minus 1."""
    return np.asarray(_error_function(noise * math.sqrt(0.5)), np.float32)


def normal_numbers(rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
    """A standard normal number for each number of an action: [steps, A] float32."""
    return rng.standard_normal((steps, math.prod(action_space.shape or ())), np.float32)
