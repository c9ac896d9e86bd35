"""What a run counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from etude.base.checks import MOST, Stored
from etude.base.data import CollectedSteps


@dataclass
class RunProgress:
    """All of it is in a run's checkpoints."""

    step: int = 0  # environment steps
    total: int = 0  # environment steps that the schedules are stretched over
    gradient_steps: int = 0  # gradient steps
    phases: int = 0  # off-policy: learning phases that were due so far, those of the warm-up included
    episodes: int = 0
    best: float | None = None  # the highest mean return of an evaluation
    seconds: float = 0.0
    evaluation_steps: int = 0  # environment steps that evaluations took while training
    evaluation_cost: int = 0  # of these, the last evaluation's
    evaluation_due: bool = False  # it was stopped in the middle, and takes place when the run goes on
    since: int = 0  # the step at which the number of environments changed last: time steps are counted from there

    def count(self, steps: CollectedSteps) -> None:
        """Count what was collected."""
        self.step += len(steps)
        self.episodes += len(steps.episodes)

    def begun(self, environments: int) -> int:
        """How many environments, the first ones, have taken the time step that the others still have to take."""
        return (self.step - self.since) % environments


def check_progress(saved: Stored, more: Iterable[str] = ()) -> dict[str, Stored]:
    """The fields of a `RunProgress`, and `more`. Raises CheckpointError where they are not."""
    held = saved.fields((*_ALWAYS, *more), _LATER)
    step = held["step"].whole()
    for name in ("total", "gradient_steps"):
        held[name].whole()
    for name in ("phases", "episodes"):  # each took a step
        held[name].whole(0, step)
    if held["best"].value is not None:
        held["best"].number()
    held["seconds"].number(0)
    for name in held.keys() & set(_LATER):
        held[name].flag() if name == "evaluation_due" else held[name].whole(0, step if name == "since" else MOST)
    return held


_LATER = ("evaluation_steps", "evaluation_cost", "evaluation_due", "since")  # older files have none
_ALWAYS = tuple(field.name for field in fields(RunProgress) if field.name not in _LATER)
