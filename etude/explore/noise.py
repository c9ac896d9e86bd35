"""Explorers that add noise to continuous actions, and noise processes [N, A], in the units of the agent's output.
Nothing is clipped here: environments clip. A process is an explorer of a run, or gives noise by `sample()`
outside one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.base import checks
from etude.base.data import CLIPPED, LOG_PROB, Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.explorer import (
    Adjustable,
    ExplorerBase,
    StatelessExplorer,
    check_action,
    check_distribution,
    check_finite,
    describe,
)
from etude.losses.distributions import Gaussian

AT_BOUND = 1 - 1e-6  # from here on a number counts as clipped: files keep actions in the units of the environment


class ClippedNoise(ExplorerBase):
    """The base of explorers whose actions `noisy` makes. Their `distribution` is that of actions before they are
    clipped."""

    std: float | Linear

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return normal_numbers(rng, steps, action_space)

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
    known = isinstance(random, bool | np.bool_)  # not in a compiled program
    if known and random:
        return Choice(_uniform(noise).reshape(action.shape), {})
    moved = ops.clip(action + (std * noise).reshape(action.shape), -1.0, 1.0)
    return Choice(moved if known else ops.where(random, _uniform(noise).reshape(action.shape), moved), {})


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


def _uniform(noise: np.ndarray) -> np.ndarray:
    """Standard normal numbers as numbers that are uniform in [-1, 1]: twice their distribution function, minus 1."""
    return ops.erf(noise * math.sqrt(0.5))


def normal_numbers(rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
    """A standard normal number for each number of an action: [steps, A] float32."""
    return rng.standard_normal((steps, math.prod(action_space.shape or ())), np.float32)


@dataclass
class GaussianWhiteNoiseProcess(Adjustable, StatelessExplorer):
    """Independent normal noise for every number of the action.

    sigma: the standard deviation; where `sigma_min` is given it falls in a straight line to that, over the first
    `n_steps_annealing` calls of `sample()`, or in a run over as many environment steps of the whole run.
    size: numbers of a `sample()`. A run draws as many as the action has.
    """

    mu: float = 0.0
    sigma: float = 1.0
    sigma_min: float | None = None
    n_steps_annealing: int = 1000
    size: int = 1
    n_steps: int = field(default=0, init=False, compare=False, repr=False)  # how often `sample` was called

    def check(self) -> None:
        _check_annealing(self)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return normal_numbers(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        action = _check_action(output, noise, "GaussianWhiteNoiseProcess")
        return Choice(_add(action, float(self.mu) + _deviation(self, step) * noise), {})

    @property
    def probability_extras(self) -> tuple[str, ...]:
        least = self.sigma if self.sigma_min is None else self.sigma_min
        return (LOG_PROB,) if least > 0 else ()

    def distribution(self, output: Any, step: int) -> Gaussian:
        self.check()
        check_action(output)
        log_std = np.log(_deviation(self, step))
        return Gaussian(output + output.dtype.type(self.mu), np.full_like(output, log_std))

    def sample(self) -> np.ndarray:
        """The next noise [size], float64."""
        self.check()
        deviation = _deviation(self, self.n_steps)
        self.n_steps += 1
        return self.mu + deviation * self.rng.standard_normal(self.size)


@dataclass
class OrnsteinUhlenbeckProcess(Adjustable, ExplorerBase):
    """Noise that is correlated in time: x += theta (mu - x) dt + sigma sqrt(dt) N(0, 1).

    Uhlenbeck & Ornstein 1930, doi:10.1103/PhysRev.36.823; in learning, Lillicrap et al. 2016, arXiv:1509.02971. Its
    standard deviation tends to sigma / sqrt(2 theta - theta**2 dt), its correlation over k steps is (1 - theta dt)**k.

    Each episode starts anew from a position drawn from N(mu, sigma). In a run the position belongs to the environment.
    size: numbers of the noise; in a run, the numbers of an action.
    sigma, sigma_min, n_steps_annealing: as in `GaussianWhiteNoiseProcess`.
    """

    theta: float
    mu: float = 0.0
    sigma: float = 1.0
    dt: float = 1e-2
    size: int = 1
    sigma_min: float | None = None
    n_steps_annealing: int = 1000
    n_steps: int = field(default=0, init=False, compare=False, repr=False)  # how often `sample` was called
    x_prev: np.ndarray = field(init=False, compare=False, repr=False)  # [size], the position of `sample`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reset_states()

    def check(self) -> None:
        check_finite(self, "theta", "dt")
        checks.not_negative(self, "theta")
        checks.positive(self, "dt")
        _check_annealing(self)
        if self.theta * self.dt >= 2:
            raise ConfigError(
                f"OrnsteinUhlenbeckProcess: theta * dt = {self.theta * self.dt:g}; expected less than 2, beyond which "
                "the position swings ever further. Lower theta or dt."
            )

    @property
    def state_size(self) -> int:
        """The position of each environment."""
        return self.size

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.standard_normal((steps, self.size), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        if isinstance(output, np.ndarray) and output.size != noise.size:
            raise ConfigError(
                f"OrnsteinUhlenbeckProcess has size = {self.size}, the agent's actions have "
                f"{math.prod(output.shape[1:])} numbers. Give it that size."
            )
        if state.shape != noise.shape:
            raise ConfigError(
                f"OrnsteinUhlenbeckProcess: the run keeps {state.shape[-1]} numbers for each environment, size is now "
                f"{self.size}. Change size between runs only."
            )
        action = _check_action(output, noise, "OrnsteinUhlenbeckProcess")
        sigma = _deviation(self, step)
        moved = self._moved(state, noise, sigma)
        begins = np.isnan(moved)
        if begins.any():
            # The drawn position and the step from it, in one normal number: their variances add.
            scale = sigma * math.sqrt((1 - self.theta * self.dt) ** 2 + self.dt)
            moved = np.where(begins, self.mu + scale * noise, moved)
        state[:] = moved
        return Choice(_add(action, moved), {})

    def sample(self) -> np.ndarray:
        """The next position [size], float64."""
        self.check()
        deviation = _deviation(self, self.n_steps)
        self.n_steps += 1
        self.x_prev = self._moved(self.x_prev, self.rng.standard_normal(self.size), deviation)
        return self.x_prev.copy()

    def reset_states(self) -> None:
        """Go to a position drawn from N(mu, sigma), with sigma as annealed so far."""
        self.check()
        self.x_prev = self.mu + _deviation(self, self.n_steps) * self.rng.standard_normal(self.size)

    def _moved(self, position: np.ndarray, noise: np.ndarray, sigma: float) -> np.ndarray:
        drift = self.theta * (self.mu - position) * self.dt
        return position + drift + sigma * math.sqrt(self.dt) * noise


def _check_annealing(process: GaussianWhiteNoiseProcess | OrnsteinUhlenbeckProcess) -> None:
    check_finite(process, "mu", "sigma")
    checks.not_negative(process, "sigma")
    checks.counts(process, "n_steps_annealing", "size")
    if process.sigma_min is None:
        return
    check_finite(process, "sigma_min")
    checks.not_negative(process, "sigma_min")
    if process.sigma_min > process.sigma:
        raise ConfigError(
            f"{type(process).__name__}: sigma_min = {process.sigma_min!r} is above sigma = {process.sigma!r}, from "
            "where the deviation falls. Lower sigma_min, or leave it None."
        )


def _deviation(process: GaussianWhiteNoiseProcess | OrnsteinUhlenbeckProcess, step: int) -> float:
    if process.sigma_min is None:
        return float(process.sigma)
    return at(Linear(float(process.sigma), float(process.sigma_min)), step, process.n_steps_annealing)


def _check_action(output: Any, noise: np.ndarray, explorer: str) -> np.ndarray:
    """Finite actions [N, ...] with a number for each of the noise [N, A]."""
    if not isinstance(output, np.ndarray) or output.dtype.kind != "f" or output.size != noise.size:
        raise ConfigError(
            f"{explorer} adds noise [environments, A] to the agent's actions, here {list(noise.shape)}; the agent "
            f"returned {describe(output)}. For a distribution use GaussianNoise, for discrete actions a policy."
        )
    check_action(output)
    return output


def _add(action: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return action + noise.reshape(action.shape).astype(action.dtype, copy=False)
