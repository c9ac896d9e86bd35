"""Where gradients come from, for most algorithms: losses are differentiated."""

from __future__ import annotations

from etude.data import Batch, Update
from etude.protocols import Engine, Weights


class FromLosses:
    """Gradient steps on the agent's losses."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, batches: Batch, hyper: dict[str, float], updates: int) -> Update:
        """One gradient step on each batch. updates: gradient steps before this phase."""
        return self._engine.learn(batches, hyper)

    def marks(self, updates: int) -> Weights:
        """What rollouts need besides the weights after so many updates."""
        return {}
