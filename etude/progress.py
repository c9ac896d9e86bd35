"""What a run counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """All of it is in a run's checkpoints."""

    step: int = 0  # environment steps
    total: int = 0  # environment steps that the schedules are stretched over
    updates: int = 0  # gradient steps
    phases: int = 0  # off-policy: learning phases that were due so far, those of the warm-up included
    episodes: int = 0
    best: float | None = None  # the highest mean return of an evaluation
    seconds: float = 0.0
    evaluation_steps: int = 0  # environment steps that evaluations took while training
    evaluation_cost: int = 0  # of these, the last evaluation's
    evaluation_due: bool = False  # it was stopped in the middle, and takes place when the run goes on
