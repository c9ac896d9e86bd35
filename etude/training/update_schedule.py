"""When a run collects how much, and how often it then learns. Each kind of learning (`kinds`) has its own schedule."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from etude.protocols import Replay
from etude.training.progress import RunProgress


class UpdatesDue(NamedTuple):
    """A learning phase: gradient steps, each on a batch of `size` examples. 0 gradient steps: none is due.

    steps: those of the run that the phase is for, over which schedules of hyperparameters are averaged; 0: their value
        now. With 0 gradient steps, a phase before learning starts: noise in layers is drawn anew.
    """

    gradient_steps: int
    size: int
    steps: int = 0


class UpdateSchedule(Protocol):
    """Asked by the learner. N is the number of environments that are collected from in one call."""

    def steps_until_update(self, step: int, stored: int) -> int | None:
        """Time steps of all environments until the next learning phase, at environment step `step` with `stored` rows
        in the replay; None: one whole episode of each environment."""

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        """The learning phase that is due now; `progress.phases` may count it."""

    def after_updates(self, replay: Replay) -> None:
        """A learning phase is over: on-policy schedules clear the replay."""
