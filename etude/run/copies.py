"""New runs like one that there is."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from etude.algorithms import ALGORITHMS
from etude.base.errors import ConfigError
from etude.run.run import Run
from etude.training.assembly.agents import environment_arguments, learning_arguments
from etude.training.learner import Learner

OF_SETUP = (
    "seed", "engine", "device", "compiled", "environments", "workers", "overlap", "vectorization", "keep_info",
)  # fmt: skip


def arguments_like(run: Run, **changes: Any) -> dict[str, Any]:
    """The arguments of `Run` for a new run of the same agent on the same environment, without a run directory.

    changes: fields of the config. ConfigError for a run of several policies.
    """
    if not isinstance(run.learner, Learner):
        raise ConfigError(
            f"A run of several policies ({run.algorithm}) cannot be repeated: expected one algorithm. Give a run of "
            "one of them."
        )
    config = dataclasses.replace(run.agent.config, **changes)
    given = learning_arguments(run.algorithm if run.algorithm in ALGORITHMS else run.agent, config)
    given |= environment_arguments(run.environment)
    given |= {name: getattr(run.setup, name) for name in OF_SETUP}
    context = run._context
    return {**given, "explorer": run.explorer, "rewrite": copy.deepcopy(run._rewrite) or None, "data": context.data}


def take_weights(run: Run, weights: dict[str, Any], moments: dict[str, Any] | None) -> bool:
    """Let a new run begin with these weights, and what normalises its observations; whether it has arrays of the same
    names and shapes. If not, it begins with its own."""
    own = run.engine.weights()
    shapes = {name: value.shape for name, value in own.items()}
    if shapes != {name: value.shape for name, value in weights.items()}:
        return False
    run.engine.load(weights)
    assert isinstance(run.learner, Learner)
    if run.learner.moments is not None and moments is not None:
        run.learner.moments.restore(moments)
    return True
