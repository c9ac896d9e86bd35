"""Acting with noise in the layers, by an engine that also trains and is evaluated: its own weights stay without."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.trees import Tree
from etude.protocols import Engine, Weights


class Perturbed:
    """Acts with an engine and the noise that was loaded last."""

    state_size = 0  # recurrent networks have no noise

    def __init__(self, engine: Engine):
        self._engine = engine
        self._still: Weights = {name: np.zeros_like(engine.layout.initial[name]) for name in engine.layout.noisy}
        self._noise = self._still

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], explored with noise."""
        self._engine.load(self._noise)
        try:
            return self._engine.act(observation)
        finally:
            self._engine.load(self._still)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with this noise from now on; other weights are the engine's."""
        self._noise = {name: weights.get(name, noise) for name, noise in self._noise.items()}
        self._engine.load({name: value for name, value in weights.items() if name not in self._noise})
