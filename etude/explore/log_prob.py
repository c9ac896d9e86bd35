"""Log probabilities of the actions of any explorer that knows their distribution, for recorded data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.explore.at_step import AtStep
from etude.explore.distributions import distribution_of
from etude.explore.policies import Greedy
from etude.explore.stateless import StatelessExplorer
from etude.protocols import Explorer


def with_log_prob(explorer: Explorer) -> Explorer:
    """The explorer with the extra `log_prob`, where the distribution of its actions is known; else itself. The best
    actions alone stay as they are: they have no density."""
    inner: Any = explorer.inner if isinstance(explorer, AtStep) else explorer
    own = isinstance(inner, StatelessExplorer) and type(inner).distribution is not StatelessExplorer.distribution
    return WithLogProb(explorer) if own and not isinstance(inner, Greedy) else explorer


@dataclass(frozen=True)
class WithLogProb:
    """The explorer `inner`, whose actions it leaves as they are, with their log probabilities as the extra `log_prob`
    [N] float32: what off-policy estimators need of recorded data."""

    inner: Explorer

    @property
    def state_size(self) -> int:
        return self.inner.state_size

    def of(self, columns: np.ndarray) -> WithLogProb:
        """For the environments with these numbers."""
        return WithLogProb(self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        choice = self.inner(output, noise, step, state)
        if "log_prob" in choice.extras:
            return choice
        log_prob = np.asarray(self.distribution(output, step).log_prob(choice.action), np.float32)
        return Choice(choice.action, {**choice.extras, "log_prob": log_prob})

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions."""
        return distribution_of(self.inner, output, step)
