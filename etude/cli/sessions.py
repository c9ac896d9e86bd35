"""A run carried out from the command line: with reporters, and with words at its end."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import CheckpointError
from etude.base.events import Finished
from etude.checkpoint import trust
from etude.cli import INTERRUPTED
from etude.cli.options import Display
from etude.cli.output import next_commands, say
from etude.cli.versions import used_by
from etude.offline import Writer
from etude.report import Curve, EventLines, JsonLines, Progress, TensorBoard, Text
from etude.report.filming import plays_texts
from etude.run import Run, Schedule


class Output(NamedTuple):
    """Where a run is recorded, and in which format; see `offline.Writer`."""

    folder: str
    format: str

    @classmethod
    def resumed(cls, held: Any, trusted: bool) -> Output | None:
        """From the config.json of a run; None where it was not recorded. Raises UntrustedError where the user of this
        process did not give the folder, and CheckpointError where it is damaged."""
        if held is None:
            return None
        if not isinstance(held, dict) or not all(isinstance(held.get(name), str) for name in cls._fields):
            raise CheckpointError(f"config.json of this run has a damaged output: {held!r:.200}. Give --output.")
        if not trusted:
            trust.require_signed(trust.output_claims(held["folder"]), held.get("signatures"))
        return cls(held["folder"], held["format"])


def carry_out(
    run: Run, steps: int, schedule: Schedule, display: Display = "progress", output: Output | None = None
) -> int:
    """Train `run` for `steps` more environment steps; returns the exit code. display: what to print."""
    assert run.directory is not None
    directory = run.directory
    total = run.step + steps
    about = run.description()
    about |= {"total": total, "schedule": schedule.plain(), "versions": used_by(about)}
    if output is not None:
        about["output"] = {**output._asdict(), "signatures": trust.signatures(trust.output_claims(output.folder))}
    directory.write_config(about)
    if not run.chief:
        finished = run.train(steps, **vars(schedule))
        return INTERRUPTED if finished.reason == "interrupted" else 0
    with ExitStack() as stack:
        reporters: list[Any] = [
            stack.enter_context(closing(JsonLines(directory.metrics))),
            stack.enter_context(closing(TensorBoard(directory.tensorboard))),
            Curve(directory.curve),
        ]
        if output is not None:
            reporters.append(Writer(output.folder, output.format))
        if display == "progress":
            reporters.insert(0, stack.enter_context(closing(Progress())))
        elif display == "events":
            reporters.insert(0, EventLines())
        if schedule.evaluate_every is not None and plays_texts(run):
            reporters.append(Text(schedule.evaluate_every, [*reporters]))
        finished = run.train(steps, reporters, **vars(schedule))
    if finished.step not in (saved := directory.saved()):
        kept = f"the newest checkpoint is of step {max(saved):,}" if saved else "there is no checkpoint of it"
        raise CheckpointError(
            f"The run has taken {finished.step:,} steps, and could not be saved: {kept}. The warnings above say why. "
            f"Make room in {directory.path}, or take another --run-dir."
        )
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
