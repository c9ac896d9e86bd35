"""Where the gradients of a learning phase come from: losses that are differentiated here, or in workers."""

from __future__ import annotations

from typing import Any, Protocol

from etude.base.data import Batch, Update, WorkerGradients
from etude.protocols import Engine


class GradientSource(Protocol):
    """Takes gradient steps with one engine."""

    def learn(self, batches: Any, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step on each of the batches that the replay sampled. gradient_steps: those before them."""


class FromLosses:
    """Gradient steps on the agent's losses. See `GradientSource`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        return self._engine.learn(batches, hyper)


class FromRollouts:
    """Gradient steps with what was differentiated elsewhere, by weights that may be older. See `GradientSource`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, found: WorkerGradients, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step. The metric `gradient_age` is the number of gradient steps since the weights were read that
        the gradient was computed with."""
        update = self._engine.apply(found.gradients, hyper)
        age = float(gradient_steps - found.gradient_steps)
        return Update(found.losses, {**found.metrics, **update.metrics, "gradient_age": age}, None, 1)
