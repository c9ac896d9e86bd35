"""Noise processes for continuous actions [N, A], in the units of the agent's output. Nothing is clipped here:
environments clip. Each is an explorer of a run, or gives noise by `sample()` outside one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import LOG_PROB, Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.adjustable import Adjustable, check_finite
from etude.explore.explorer import Alike, StatelessExplorer
from etude.explore.noise import normal_numbers
from etude.explore.outputs import check_action, describe
from etude.losses.distributions import Gaussian


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
class OrnsteinUhlenbeckProcess(Adjustable, Alike):
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
