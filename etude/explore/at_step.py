"""An explorer whose schedules stand still, for episodes that are played outside of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.explore.log_prob import ExplorerBase, distribution_of, with_log_prob
from etude.protocols import Explorer


@dataclass(frozen=True)
class AtStep(ExplorerBase):
    """The explorer `inner`, as it explores at environment step `now` of the run."""

    inner: Explorer
    now: int

    @property
    def state_size(self) -> int:
        return self.inner.state_size

    def of(self, columns: np.ndarray) -> AtStep:
        """For the environments with these numbers."""
        return replace(self, inner=self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return self.inner(output, noise, self.now, state)

    def with_log_prob(self) -> AtStep:
        return replace(self, inner=with_log_prob(self.inner))

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions, at step `now`."""
        return distribution_of(self.inner, output, self.now)
