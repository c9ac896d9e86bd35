"""What most explorers have in common."""

from __future__ import annotations

from typing import Self

import numpy as np

NO_MEMORY = np.empty((1, 0))  # what a single call passes to an explorer that keeps nothing


class Memoryless:
    """An explorer that keeps nothing from step to step and treats all environments alike."""

    memory: int = 0

    def of(self, columns: np.ndarray) -> Self:
        """Itself."""
        return self
