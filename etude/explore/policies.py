"""Explorers over what an agent's policy is: its best actions, samples of it, or the actions that it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Box, Space
from etude.explore.explorer import (
    ExplorerBase,
    StatelessExplorer,
    check_action,
    check_distribution,
    check_values,
    describe,
)
from etude.explore.noise import normal_numbers
from etude.losses.distributions import Categorical, Deterministic, StateDependentGaussian
from etude.losses.masks import MaskedValues, best_action


def best_of(output: Any) -> Any:
    """The mode [N, ...] of a distribution, or the best [N] of action values [N, n], the first of equals; over `ops`."""
    values = isinstance(output, MaskedValues) or not isinstance(output, tuple)
    return best_action(output) if values else output.mode()


@dataclass(frozen=True)
class Greedy(StatelessExplorer):
    """The best action of action values [N, n] (the first of equals), or the mode of a distribution."""

    @property
    def probability_extras(self) -> tuple[str, ...]:
        """None: a single action has no density, and what it says of Discrete ones helps no estimator."""
        return ()

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        if isinstance(output, np.ndarray | MaskedValues):
            return Choice(best_of(check_values(output, "Greedy")[0]), {})
        return Choice(best_of(check_distribution(output, "Greedy")), {})

    def distribution(self, output: Any, step: int) -> Categorical | Deterministic:
        """Probability 1 for the best of Discrete actions; for Box actions, the mode."""
        if isinstance(output, np.ndarray | MaskedValues):
            return Categorical(only(check_values(output, "Greedy")[0].argmax(1), output.shape[1]))
        distribution = check_distribution(output, "Greedy")
        if isinstance(distribution, Categorical):
            return Categorical(only(distribution.mode(), distribution.shape[1]))
        mode = distribution.mode()
        if mode.dtype.kind != "f":
            raise ConfigError(
                "Off-policy estimation knows the best action of Discrete and Box actions alone. Estimate the sampled "
                "policy: explore=True (--explore)."
            )
        return Deterministic(mode)


@dataclass(frozen=True)
class Sample(StatelessExplorer):
    """A sample of a distribution, with its log probability as the extra `log_prob` [N] float32.

    Samples of an unbounded policy are not clipped: their probability belongs to them as they are; environments clip.
    """

    log_prob: bool = True  # False for algorithms that do not read it, which saves half of the time

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        size = math.prod(action_space.shape or ())  # the shape of Discrete is (): one number
        draw = rng.standard_normal if isinstance(action_space, Box) else rng.random
        return draw((steps, size), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        distribution = check_distribution(output, "Sample")
        if not self.log_prob:
            return Choice(distribution.sample(noise), {})
        action, log_prob = distribution.sample_with_log_prob(noise)
        return Choice(action, {"log_prob": log_prob})

    def with_log_prob(self) -> Sample:
        return replace(self, log_prob=True)

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution itself."""
        return check_distribution(output, "Sample")


@dataclass(frozen=True)
class AsIs(StatelessExplorer):
    """The output itself, [N] or [N, ...], is the action: integers for Discrete actions (returned as int64), finite
    numbers for Box ones (returned as they are)."""

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        if not isinstance(output, np.ndarray) or output.shape[:1] != noise.shape[:1]:
            raise ConfigError(
                f"AsIs takes the agent's output for the actions, one for each of {len(noise)} environments; the "
                f"agent returned {describe(output)}. For the mode of a distribution use Greedy."
            )
        if output.dtype.kind in "biu":
            return Choice(output.astype(np.int64, copy=False), {})
        check_action(output)
        return Choice(output, {})


def only(action: np.ndarray, n: int) -> np.ndarray:
    """Logits [N, n] of the policy that takes one action [N] with probability 1."""
    return np.where(action[:, None] == np.arange(n), np.float32(0), np.float32(-np.inf))


@dataclass(frozen=True)
class CorrelatedSample(ExplorerBase):
    """A sample of a Gaussian policy, from standard normal numbers that follow one another within an episode:
    z = correlation * z' + sqrt(1 - correlation**2) * N(0, 1), z' being those of the step before.

    An autoregressive policy of order 1: Korenkevych et al. 2019, arXiv:1903.11524. Each action has the distribution of
    the policy, two that are k steps apart have the correlation `correlation**k`. Only for algorithms that learn from
    any policy's actions: the probability of an action given those before it is another one.

    correlation: from 0, independent samples, to 1, one for each episode. size: the numbers of an action.
    """

    correlation: float
    size: int

    def __post_init__(self) -> None:
        checks.fractions(self, "correlation")
        checks.counts(self, "size")

    @property
    def state_size(self) -> int:
        """The normal numbers of the step before."""
        return self.size

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return normal_numbers(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        distribution = check_distribution(output, "CorrelatedSample")
        if state.shape != noise.shape:
            raise ConfigError(
                f"CorrelatedSample has size = {self.size}, the agent's actions have {noise.shape[-1]} numbers. Give it "
                "that size."
            )
        fresh = math.sqrt(1.0 - self.correlation**2)
        state[:] = np.where(np.isnan(state), noise, self.correlation * state + fresh * noise)
        return Choice(distribution.sample(state.astype(np.float32)), {})


SEEDS = 2**24  # how many numbers a float32 generator draws from


@dataclass(frozen=True)
class StateDependentSample(ExplorerBase):
    """A sample of a `StateDependentGaussian`, with its log probability as the extra `log_prob` [N] float32.

    The noise of an action is a linear function of the policy's features, whose coefficients are drawn again at the
    first step of an episode and after every `sample_every` steps of it: Raffin, Kober & Stulp 2021, arXiv:2005.05719.
    In between, the same state gets the same action.

    features: the features of the policy. size: the numbers of an action. sample_every: None: once for each episode.
    log_prob: False for algorithms that do not read it.
    """

    features: int
    size: int
    sample_every: int | None = None
    log_prob: bool = True

    def __post_init__(self) -> None:
        checks.counts(self, "features", "size", "sample_every")

    @property
    def state_size(self) -> int:
        """The steps since the last draw, and the standard normal matrix [size, features] that was drawn."""
        return 1 + self.size * self.features

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """Seeds of matrices, [steps, 2]: matrices for all steps of a fragment would take too much memory."""
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        if not isinstance(output, StateDependentGaussian):
            raise ConfigError(
                "StateDependentSample needs a StateDependentGaussian policy, as of a config with gsde = True; the "
                f"agent returned {describe(output)}. Use Sample."
            )
        if output.scale.shape[1:] != (self.size, self.features):
            raise ConfigError(
                f"StateDependentSample has size = {self.size} and features = {self.features}, the agent's policy "
                f"{output.scale.shape[1]} and {output.scale.shape[2]}. Give it those."
            )
        check_distribution(output, "StateDependentSample")
        # Draw the matrices of the environments for which it is time.
        begins = np.isnan(state[:, 0])
        due = begins if self.sample_every is None else begins | (state[:, 0] >= self.sample_every)
        for i in np.flatnonzero(due):
            seed, number = (noise[i] * SEEDS).astype(np.int64).tolist()
            state[i, 0] = 0.0
            state[i, 1:] = generator(seed, "gsde", number).standard_normal(self.size * self.features, np.float32)
        state[:, 0] += 1
        matrix = state[:, 1:].reshape(-1, self.size, self.features).astype(np.float32)
        standard = output.standard_noise(matrix)
        if not self.log_prob:
            return Choice(output.sample(standard), {})
        action, log_prob = output.sample_with_log_prob(standard)
        return Choice(action, {"log_prob": log_prob})

    def with_log_prob(self) -> StateDependentSample:
        return replace(self, log_prob=True)
