"""Samples of a policy whose noise is a function of the state (gSDE)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Space
from etude.explore.outputs import check_distribution, describe
from etude.explore.stateless import Alike
from etude.losses.distributions import StateDependentGaussian

SEEDS = 2**24  # how many numbers a float32 generator draws from


@dataclass(frozen=True)
class StateDependentSample(Alike):
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
        checks.counts(self, "features", "size")
        if self.sample_every is not None:
            checks.counts(self, "sample_every")

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
        self._draw_again(noise, state)
        state[:, 0] += 1
        matrix = state[:, 1:].reshape(-1, self.size, self.features).astype(np.float32)
        standard = output.standard_noise(matrix)
        if not self.log_prob:
            return Choice(output.sample(standard), {})
        action, log_prob = output.sample_with_log_prob(standard)
        return Choice(action, {"log_prob": log_prob})

    def with_log_prob(self) -> StateDependentSample:
        return replace(self, log_prob=True)

    def _draw_again(self, noise: np.ndarray, state: np.ndarray) -> None:
        """Draw the matrices of the environments for which it is time."""
        begins = np.isnan(state[:, 0])
        due = begins if self.sample_every is None else begins | (state[:, 0] >= self.sample_every)
        for i in np.flatnonzero(due):
            seed, number = (noise[i] * SEEDS).astype(np.int64).tolist()
            state[i, 0] = 0.0
            state[i, 1:] = generator(seed, "gsde", number).standard_normal(self.size * self.features, np.float32)
