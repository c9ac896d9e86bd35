"""Hyperparameters that change while a run goes on, as data. A schedule is asked for its value at an environment
step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` in a straight line over the first `fraction` of the run, then constant at `end`."""

    start: float
    end: float
    fraction: float = 1.0


def at(value: float | Linear, step: int, total: int) -> float:
    """The value of a number or a schedule at environment step `step` of a run of `total` steps."""
    if not isinstance(value, Linear):
        return float(value)
    progress = min(1.0, step / max(1.0, value.fraction * total))
    return value.start + (value.end - value.start) * progress
