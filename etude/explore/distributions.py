"""Best actions with noise that gives every action a probability, for estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.explore.outputs import check_distribution
from etude.explore.policies import Sample
from etude.explore.stateless import StatelessExplorer
from etude.explore.values import EpsilonGreedy
from etude.losses.distributions import Categorical, Gaussian
from etude.losses.masks import MaskedValues


@dataclass(frozen=True)
class Softened(StatelessExplorer):
    """The best action, softened so that every action has a probability: of Discrete actions, a random one with
    probability `amount`; of Box actions, Gaussian noise with the standard deviation `amount` (actions are in [-1, 1]).

    Adds the extra `log_prob` [N] float32. Raises ConfigError for other actions.
    """

    amount: float

    def __post_init__(self) -> None:
        checks.positive(self, "amount")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return Sample().draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return Sample()(self.distribution(output, step), noise, step, state)

    def distribution(self, output: Any, step: int) -> Categorical | Gaussian:
        if isinstance(output, np.ndarray | MaskedValues):
            return EpsilonGreedy(self.amount).distribution(output, step)
        distribution = check_distribution(output, "softened")
        if isinstance(distribution, Categorical):
            values = MaskedValues(*distribution) if distribution.masked else distribution.logits
            return EpsilonGreedy(self.amount).distribution(values, step)
        mode = distribution.mode()
        if mode.dtype.kind != "f":
            raise ConfigError(
                "softened= is for Discrete and Box actions. Estimate the sampled policy: explore=True (--explore)."
            )
        return Gaussian(mode, np.full_like(mode, np.log(self.amount)))
