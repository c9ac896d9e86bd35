"""Runs as the command line names them: a run directory, or a checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from etude.errors import CheckpointError
from etude.run import Run, load

Which = Literal["last", "best"]


def trained(path: Path, which: Which, env: str | None, **setup: Any) -> Run:
    """The run in a directory's newest or best checkpoint, or in a checkpoint file; acts, and writes nothing."""
    from etude.run_directory import RunDirectory

    if path.is_file():
        return load(path, env, **setup)
    if not path.is_dir():
        raise CheckpointError(f"There is no run at {path}. Give a run directory, or a checkpoint file (*.etude).")
    directory = RunDirectory(path)
    return load(directory.best if which == "best" else directory.newest_complete().path, env, **setup)
