"""Checkpoints of a run: the events of writing one, and the checks before one is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from etude.base.checks import Stored
from etude.base.errors import CallbackError, CheckpointError
from etude.base.events import Event, Saved, Saving, Warned
from etude.checkpoint.run_directory import RunDirectory
from etude.envs.tasks import check_stored_task
from etude.training.learner import Learner
from etude.training.loop import Collecting

COMPONENTS = ("description", "engine", "replay", "rollout", "progress", "moments", "scale")
_SINCE = ("layer_noise", "recorded", "task")  # older files, and runs without them, have none


def save(directory: RunDirectory | None, kind: str, step: int, state: Callable[[], Any]) -> Iterator[Event]:
    """Write a checkpoint of the kind "last" or "best", if there is a directory; a warning where that fails."""
    if directory is None:
        return
    yield Saving(step, kind)
    write = directory.save if kind == "last" else directory.save_best
    try:
        yield Saved(step, str(write(step, state())), kind)
    except CheckpointError as error:
        yield Warned(step, f"The run goes on without this checkpoint. {error}")


def check_run_state(state: dict[str, Any], algorithm: str, learner: Learner, collecting: Collecting) -> None:
    """Raise CheckpointError, with the place, where a run of this algorithm cannot continue from this state; nothing is
    changed."""
    held = Stored(state, "").fields([name for name in COMPONENTS if name != "replay"], ("replay", *_SINCE))
    saved = held["description"].fields(("algorithm",), held["description"].table())["algorithm"].text()
    if saved != algorithm:
        raise CheckpointError(
            f"This checkpoint is of {saved}, and the run is of {algorithm}. Load it with etude.load, or make the run "
            "with the same algorithm."
        )
    learner.check_state(held)
    layout = learner.engine.layout
    trained = {name: layout.initial[name] for name in layout.trainable}
    collecting.check_state(held["rollout"], trained)
    if "task" in held:
        check_stored_task(held["task"])


def stopped_by(error: CallbackError, directory: RunDirectory | None) -> CallbackError:
    """The error of a callback that stopped a run, with how to continue."""
    if directory is None:
        return CallbackError(f"{error} The run stopped. It can go on: run.train.")
    return CallbackError(f"{error} The run stopped. It is saved: etude.load({str(directory.path)!r}) continues it.")
