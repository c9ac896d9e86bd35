"""Explorers that do not distinguish environments, or keep no state."""

from __future__ import annotations

from typing import Self

import numpy as np

from etude.explore.log_prob import ExplorerBase

NO_STATE = np.empty((1, 0))  # the state that a single call passes to a stateless explorer


class Alike(ExplorerBase):
    """An explorer that treats all environments alike."""

    def of(self, columns: np.ndarray) -> Self:
        """Itself."""
        return self


class StatelessExplorer(Alike):
    """An explorer that treats all environments alike and keeps no state from step to step."""

    state_size: int = 0
