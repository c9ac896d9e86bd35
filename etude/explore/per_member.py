"""Exploration of several runs whose environments are stepped together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.protocols import Explorer


@dataclass(frozen=True)
class PerMember:
    """Explores each of `members` runs, of `environments` environments each, as `explorer` explores one: schedules and
    environments count from 0 in each. The environments of a run follow those of the run before."""

    explorer: Explorer
    members: int
    environments: int

    @property
    def state_size(self) -> int:
        """Of the explorer of one run."""
        return self.explorer.state_size

    def of(self, columns: np.ndarray) -> PerMember:
        """The explorer for the environments with these numbers."""
        return replace(self, explorer=self.explorer.of(columns % self.environments))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """The random numbers for `steps` actions of one environment: [steps, k] float32."""
        return self.explorer.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """Actions for N environments; see `protocols.Explorer`. step: environment steps of all runs."""
        return self.explorer(output, noise, step // self.members, state)
