"""Runs as the command line names them: a run directory, or a checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from etude import checkpoint
from etude.cli.output import say
from etude.errors import CheckpointError
from etude.run import COMPONENTS, Run, from_state

Which = Literal["last", "best"]
REPLAY = ("replay",)  # acting needs none: it is verified, and not kept in memory


def trained(path: Path, which: Which, env: str | None, **setup: Any) -> Run:
    """The run in a directory's newest or best checkpoint, or in a checkpoint file; acts, and writes nothing."""
    return from_state(_state(path, which), env, **setup)


def _state(path: Path, which: Which) -> dict[str, Any]:
    from etude.run_directory import RunDirectory

    if path.is_file():
        return checkpoint.read(path, COMPONENTS, REPLAY)
    if not path.is_dir():
        raise CheckpointError(f"There is no run at {path}. Give a run directory, or a checkpoint file (*.etude).")
    directory = RunDirectory(path)
    if which == "best":
        return checkpoint.read(directory.best, COMPONENTS, REPLAY)
    loaded = directory.load(COMPONENTS, REPLAY)
    for note in loaded.notes:
        say(note)
    return loaded.state
