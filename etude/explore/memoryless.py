"""What most explorers have in common."""

from __future__ import annotations

from typing import Self

import numpy as np

NO_MEMORY = np.empty((1, 0))  # what a single call passes to an explorer that keeps nothing


class Alike:
    """An explorer that treats all environments alike."""

    def of(self, columns: np.ndarray) -> Self:
        """Itself."""
        return self


class Memoryless(Alike):
    """An explorer that treats all environments alike and keeps nothing from step to step."""

    memory: int = 0
