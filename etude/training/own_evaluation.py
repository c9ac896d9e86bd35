"""Evaluation functions of one's own: what they return, as an `Evaluation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.base.errors import CallbackError
from etude.envs.faults import explain_error
from etude.training.evaluate import Evaluation

EvaluationFunction = Callable[[Any], Any]  # called with the run
RESERVED = ("mean_reward", "mean_ep_length", "cut_off")  # names under `eval/` that are taken


def evaluate_with(function: EvaluationFunction, run: Any, step: int, target: float | None) -> Evaluation:
    """What `function(run)` found: see docs/training.md. step: of the run. target: that returns are compared with.

    Raises CallbackError where it raises, or returns something else.
    """
    found = _called(function, run, step)
    if target is not None and not found.returns:
        raise CallbackError(
            f"Evaluation function {_name(function)} returned no returns at step {step:,}, and target = {target} is "
            "compared with their mean. Return {'returns': [...], ...}, or leave the target out."
        )
    return found


def _called(function: EvaluationFunction, run: Any, step: int) -> Evaluation:
    name = _name(function)
    try:
        found = function(run)
    except Exception as error:
        raised = f"Evaluation function {name} raised {explain_error(error)} at step {step:,}."
        raise CallbackError(raised, error) from None
    if isinstance(found, Evaluation):
        return found
    given = dict(found) if isinstance(found, Mapping) else {"returns": found}
    returns = _returns(given.pop("returns", ()))
    metrics = {key: number for key, value in given.items() if (number := _number(value)) is not None}
    wrong = [key for key in given if key not in metrics or not isinstance(key, str) or key in ("", *RESERVED)]
    if returns is None or wrong or not (returns or metrics):
        got = f"{wrong[0]!r}: {given[wrong[0]]!r}" if wrong else repr(found)
        raise CallbackError(
            f"Evaluation function {name} returned {got[:200]} at step {step:,}; expected the returns of episodes "
            "(numbers), an Evaluation, or a dict of numbers by name, in which 'returns' may hold the returns of "
            f"episodes. Names other than {', '.join(RESERVED)}."
        )
    return Evaluation(returns, (), metrics=metrics)


def _name(function: EvaluationFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _returns(given: Any) -> tuple[float, ...] | None:
    """The returns of episodes; None where they are none."""
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return None
    return tuple(array.reshape(-1).tolist()) if array.ndim <= 1 and not np.isnan(array).any() else None


def _number(value: Any) -> float | None:
    """A number, of whatever library; None for what is none."""
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return None
