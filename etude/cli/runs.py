"""Runs as the command line names them: a run directory, or a checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from etude.checkpoint.run_directory import read_run
from etude.cli.output import say
from etude.run import COMPONENTS, Run, from_state

Which = Literal["last", "best"]
TRAINING = ("replay", "evaluation")  # components that acting does not need: verified, and not kept in memory


def trained(path: Path, which: Which, env: str | None, **setup: Any) -> Run:
    """The run in a directory's newest or best checkpoint, or in a checkpoint file; acts, and writes nothing."""
    loaded = read_run(path, COMPONENTS, TRAINING, best=which == "best")
    for note in loaded.notes:
        say(note)
    return from_state(loaded.state, env, **setup)
