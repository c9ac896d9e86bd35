"""Where the gradients of a learning phase come from: losses that are differentiated here, or in workers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from etude.base.data import Batch, Update, WorkerGradients
from etude.protocols import Engine, Weights

VERSION, HYPER = "learner:", "hyper:"  # no attribute of an agent has such a name


class GradientSource(Protocol):
    """Takes gradient steps with one engine."""

    def learn(self, batches: Any, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step on each of the batches that the replay sampled. gradient_steps: those before them."""

    def version_arrays(self, gradient_steps: int, hyper: dict[str, float]) -> Weights:
        """The policy version, as arrays that rollouts load with the weights after so many gradient steps."""


class FromLosses:
    """Gradient steps on the agent's losses. See `GradientSource`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def learn(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        return self._engine.learn(batches, hyper)

    def version_arrays(self, gradient_steps: int, hyper: dict[str, float]) -> Weights:
        """The weights are all that rollouts need."""
        return {}


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

    def version_arrays(self, gradient_steps: int, hyper: dict[str, float]) -> Weights:
        """The number of gradient steps, and the hyperparameters: see `split_version`."""
        numbers = {f"{VERSION}{HYPER}{name}": np.array(value, np.float64) for name, value in hyper.items()}
        return {f"{VERSION}gradient_steps": np.array(gradient_steps, np.float64), **numbers}


def split_version(loaded: Weights) -> tuple[Weights, dict[str, float], int]:
    """The weights alone, the hyperparameters and the number of gradient steps that were loaded together."""
    found = {name.removeprefix(VERSION): float(value) for name, value in loaded.items() if name.startswith(VERSION)}
    hyper = {name.removeprefix(HYPER): value for name, value in found.items() if name.startswith(HYPER)}
    weights = {name: value for name, value in loaded.items() if not name.startswith(VERSION)}
    return weights, hyper, int(found["gradient_steps"])
