"""A run carried out from the command line: with reporters, and with words at its end."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from etude.base.events import Finished
from etude.cli import INTERRUPTED
from etude.cli.options import Display
from etude.cli.output import next_commands, say
from etude.cli.versions import used_by
from etude.protocols import Reporter
from etude.report import Curve, EventLines, JsonLines, Progress, TensorBoard
from etude.run import Run, Schedule


def carry_out(run: Run, steps: int, schedule: Schedule, display: Display = "progress") -> int:
    """Train `run` for `steps` more environment steps; returns the exit code. display: what to print."""
    assert run.directory is not None
    directory = run.directory
    total = run.step + steps
    about = run.description()
    about |= {"total": total, "schedule": schedule.plain(), "versions": used_by(about)}
    directory.write_config(about)
    with ExitStack() as stack:
        reporters: list[Reporter] = [
            stack.enter_context(closing(JsonLines(directory.metrics))),
            stack.enter_context(closing(TensorBoard(directory.tensorboard))),
            Curve(directory.curve),
        ]
        if display == "progress":
            reporters.insert(0, stack.enter_context(closing(Progress())))
        elif display == "events":
            reporters.insert(0, EventLines())
        finished = run.train(steps, reporters, **vars(schedule))
    if display == "nothing":
        return INTERRUPTED if finished.reason == "interrupted" else 0
    return _conclude(finished, run, schedule, directory.path)


def _conclude(finished: Finished, run: Run, schedule: Schedule, directory: Path) -> int:
    best = run.learner.progress.best
    if finished.reason == "interrupted":
        say(f"\nStopped at step {finished.step:,} and saved. Continue with\n  etude resume {directory}")
        return INTERRUPTED
    if finished.reason == "target":
        say(
            f"\nReached a mean return of {schedule.target:g} at step {finished.step:,}, after {finished.seconds:.1f} s."
        )
    elif schedule.target is not None and best is not None and best < schedule.target:
        say(f"\nNo evaluation reached {schedule.target:g}; the best mean return was {best:.1f}.")
    next_commands(str(directory))
    return 0
