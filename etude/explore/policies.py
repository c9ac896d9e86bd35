"""Explorers over what an agent's policy is: its best actions, samples of it, or the actions that it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Space
from etude.explore.outputs import check_action, check_distribution, check_values, describe
from etude.explore.stateless import StatelessExplorer
from etude.losses.distributions import Categorical, Deterministic
from etude.losses.masks import MaskedValues


@dataclass(frozen=True)
class Greedy(StatelessExplorer):
    """The best action of action values [N, n] (the first of equals), or the mode of a distribution."""

    @property
    def probability_extras(self) -> tuple[str, ...]:
        """None: a single action has no density, and what it says of Discrete ones helps no estimator."""
        return ()

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return np.empty((steps, 0), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        if isinstance(output, np.ndarray | MaskedValues):
            return Choice(check_values(output, "Greedy")[0].argmax(1), {})
        return Choice(check_distribution(output, "Greedy").mode(), {})

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

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return np.empty((steps, 0), np.float32)

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
