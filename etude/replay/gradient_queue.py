"""Worker gradients that wait to be applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.base.data import WorkerGradients
from etude.replay.ring_view import Stateless


class GradientQueue(Stateless):
    """A `protocols.Replay` of worker gradients: first in, first out."""

    def __init__(self) -> None:
        self.view = self
        self.reward_scale: float = 1.0  # rewards are not seen here
        self._waiting: list[WorkerGradients] = []

    def __len__(self) -> int:
        """The number of gradients that wait."""
        return len(self._waiting)

    def add(self, found: WorkerGradients) -> None:
        """Append gradients; a part of a rollout that only counts steps has none."""
        if found.gradients:
            self._waiting.append(found)

    def sample(self, k: int, n: int) -> WorkerGradients:
        """The oldest gradients; k and n are ignored."""
        return self._waiting[0]

    def update(self, found: WorkerGradients, td_error: Any, ratio: Any = None) -> None:
        """There are no priorities."""

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Nothing depends on hyperparameters."""

    def trim(self, keep: int) -> None:
        """A gradient is applied as a whole."""

    def clear(self) -> None:
        self._waiting.clear()

    def restore(self, state: dict[str, Any]) -> None:
        """Start empty: between two learning phases there is nothing in it."""
        self.clear()
