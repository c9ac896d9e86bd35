"""Samples of a policy that are alike from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.explore.noise import normal_numbers
from etude.explore.outputs import check_distribution
from etude.explore.stateless import Alike


@dataclass(frozen=True)
class CorrelatedSample(Alike):
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
