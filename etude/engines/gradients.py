"""Where gradients come from, for most algorithms: losses are differentiated."""

from __future__ import annotations

import numpy as np

from etude.base.data import Batch, Update, WorkerGradients
from etude.protocols import Engine, Weights

MARK, HYPER = "learner:", "hyper:"  # no attribute of an agent has such a name


class FromLosses:
    """Gradient steps on the agent's losses."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step on each batch. gradient_steps: those before this phase."""
        return self._engine.learn(batches, hyper)

    def marks(self, gradient_steps: int, hyper: dict[str, float]) -> Weights:
        """What rollouts need besides the weights after so many updates."""
        return {}


class FromRollouts:
    """Gradient steps with what was differentiated elsewhere, by weights that may be older. See `FromLosses`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, found: WorkerGradients, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step; tells how many others were taken since the weights were read that it was computed with."""
        update = self._engine.apply(found.gradients, hyper)
        told = {**found.metrics, **update.metrics, "gradient_age": float(gradient_steps - found.gradient_steps)}
        return Update(found.losses, told, None, 1)

    def marks(self, gradient_steps: int, hyper: dict[str, float]) -> Weights:
        """The number of updates, and the hyperparameters: see `split_marks`."""
        numbers = {f"{MARK}{HYPER}{name}": np.array(value, np.float64) for name, value in hyper.items()}
        return {f"{MARK}gradient_steps": np.array(gradient_steps, np.float64), **numbers}


def split_marks(loaded: Weights) -> tuple[Weights, dict[str, float], int]:
    """The weights alone, the hyperparameters and the number of updates that were loaded together."""
    marks = {name.removeprefix(MARK): float(value) for name, value in loaded.items() if name.startswith(MARK)}
    hyper = {name.removeprefix(HYPER): value for name, value in marks.items() if name.startswith(HYPER)}
    weights = {name: value for name, value in loaded.items() if not name.startswith(MARK)}
    return weights, hyper, int(marks["gradient_steps"])
