"""An explorer for actors with different weights in each environment, as those of evolution strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.explore.log_prob import ExplorerBase, with_log_prob
from etude.protocols import Explorer


@dataclass(frozen=True)
class ByEnvironment(ExplorerBase):
    """Passes the environments' numbers in the run, a tuple [N], to the actor: `act` returns a function of them, whose
    result the explorer `inner` turns into actions."""

    inner: Explorer
    columns: tuple[int, ...] = ()

    @property
    def state_size(self) -> int:
        return self.inner.state_size

    def of(self, columns: np.ndarray) -> ByEnvironment:
        """For the environments with these numbers."""
        return ByEnvironment(self.inner.of(columns), tuple(columns.tolist()))

    def with_log_prob(self) -> ByEnvironment:
        return replace(self, inner=with_log_prob(self.inner))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        columns = self.columns[: len(noise)]  # of the first ones only, where it is called for fewer
        return self.inner(output(columns), noise, step, state)
