"""What a run counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from etude.checks import Stored


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


def check_progress(held: dict[str, Stored]) -> None:
    """Raise CheckpointError where these are not the fields of a `Progress`."""
    step = held["step"].whole()
    for name in ("total", "updates"):
        held[name].whole()
    for name in ("phases", "episodes"):  # each took a step
        held[name].whole(0, step)
    if held["best"].value is not None:
        held["best"].number()
    held["seconds"].number(0)


PROGRESS = tuple(field.name for field in fields(Progress))
