"""Explorers that do not distinguish environments, or keep no state."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from etude.base.errors import ConfigError

NO_STATE = np.empty((1, 0))  # the state that a single call passes to a stateless explorer


class Alike:
    """An explorer that treats all environments alike."""

    def of(self, columns: np.ndarray) -> Self:
        """Itself."""
        return self


class StatelessExplorer(Alike):
    """An explorer that treats all environments alike and keeps no state from step to step."""

    state_size: int = 0

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions for `output` of `act`, at environment step `step` of the run. ConfigError
        where their probabilities have no closed form."""
        raise ConfigError(
            f"{type(self).__name__} does not know the probabilities of its actions. Off-policy estimation needs a "
            "target such as Sample, EpsilonGreedy or Boltzmann: give explorer= (--explorer)."
        )
