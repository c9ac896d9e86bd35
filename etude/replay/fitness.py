"""The fitness of evolution strategies: one undiscounted episode return for each environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base.data import Batch, Steps
from etude.replay.ring_view import Stateless


class Fitness(Stateless):
    """A `protocols.Replay` that stores the return of one episode of each of N environments, undiscounted and in the
    environments' own rewards."""

    def __init__(self, environments: int):
        self.view = self
        self.reward_scale: float = 1.0  # fitness is ranked, so its scale has no effect
        self._returns = np.full(environments, np.nan, np.float32)

    def __len__(self) -> int:
        """How many environments have ended an episode."""
        return int(np.isfinite(self._returns).sum())

    def add(self, steps: Steps) -> None:
        for end in steps.episodes:
            self._returns[end.environment] = end.total

    def sample(self, k: int, n: int) -> Batch:
        """The returns as rewards [1, N]; k and n are ignored."""
        shape = (1, len(self._returns))
        ones = np.ones(shape, np.float32)
        index = np.arange(shape[1])[None]
        return Batch(None, np.zeros(shape, np.float32), self._returns[None].copy(), ones, None, ones, index)

    def update(self, batches: Batch, td_error: np.ndarray, ratio: np.ndarray | None = None) -> None:
        """There are no priorities."""

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Nothing depends on hyperparameters."""

    def trim(self, keep: int) -> None:
        """A generation is learned from as a whole."""

    def clear(self) -> None:
        self._returns[:] = np.nan

    def restore(self, state: dict[str, Any]) -> None:
        """Start empty: between two learning phases nothing is stored."""
        self.clear()
