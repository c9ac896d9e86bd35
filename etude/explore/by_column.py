"""An explorer for actors that act differently in each environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.protocols import Explorer


@dataclass(frozen=True)
class ByColumn:
    """Tells the actor which environments its observations are of: what `act` returned is called with their numbers in
    the run, [N] as a tuple, and gives what the explorer `inner` makes actions of."""

    inner: Explorer
    columns: tuple[int, ...] = ()

    @property
    def memory(self) -> int:
        return self.inner.memory

    def of(self, columns: np.ndarray) -> ByColumn:
        """For the environments with these numbers."""
        return ByColumn(self.inner.of(columns), tuple(columns.tolist()))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, memory: np.ndarray) -> Choice:
        columns = self.columns[: len(noise)]  # of the first ones only, where it is called for fewer
        return self.inner(output(columns), noise, step, memory)
