"""New runs like one that there is."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from etude.base.errors import ConfigError
from etude.run.run import Run
from etude.training.description import RunDescription
from etude.training.learner import Learner


def described_like(run: Run, **changes: Any) -> RunDescription:
    """What makes a new run of the same agent on the same environment, on one device, without a replay's folder.

    changes: fields of the config. ConfigError for a run of several policies.
    """
    if not isinstance(run.learner, Learner):
        raise ConfigError(
            f"A run of several policies ({run.algorithm}) cannot be repeated: expected one algorithm. Give a run of "
            "one of them."
        )
    made = run.described()
    execution = dataclasses.replace(
        made.execution, replay_folder=None, ray=None, devices=None, strategy=None,
        rewrite=copy.deepcopy(made.execution.rewrite),
    )  # fmt: skip
    config = dataclasses.replace(run.agent.config, **changes)
    return dataclasses.replace(made.learning(config, run.agent), execution=execution)


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
