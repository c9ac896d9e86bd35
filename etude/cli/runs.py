"""Runs as the command line names them: a run directory, a checkpoint file, or the file of an agent of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import etude.checkpoint as checkpoint
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.run_directory import read_run
from etude.cli.output import say
from etude.run import COMPONENTS, Run, from_state

OF_AGENT = ("kind", "class", "weights", "numbers")  # what the file of an agent holds of it, beside its history
Which = Literal["last", "best"]
TRAINING = ("replay", "evaluation")  # components that acting does not need: verified, and not kept in memory


def trained(path: Path, which: Which, env: str | None, **setup: Any) -> Run:
    """The run in a directory's newest or best checkpoint, or in a checkpoint file; acts, and writes nothing."""
    loaded = read_run(path, COMPONENTS, TRAINING, best=which == "best")
    for note in loaded.notes:
        say(note)
    return from_state(loaded.state, env, **setup)


def own_agent(path: Path, name: str) -> Any:
    """The agent of one's own that a file holds, of the class that the user names."""
    from etude.envs.registry import imported
    from etude.solo.agent import RL

    try:
        agent = imported(name, "agent")()
    except TypeError as error:
        raise ConfigError(
            f"--agent {name} is called without arguments, and raised {error}. Name a function that makes the agent."
        ) from error
    if not isinstance(agent, RL):
        raise ConfigError(f"--agent {name} made a {type(agent).__name__}; expected an agent of etude.RL or RL_pytorch.")
    agent.restore(path)
    return agent


def episodes_of(path: Path) -> dict[str, Sequence[float]] | None:
    """The rewards and losses of an agent of one's own by episode, from its file; None for anything else."""
    with suppress(CheckpointError):
        if path.is_file() and "agent" in checkpoint.inspect(path).components:
            held = Stored(checkpoint.read(path, skip=("training",)), "").table()["agent"].fields(("history",), OF_AGENT)
            history = held["history"].fields(("rewards", "losses"), ("seconds", "best", "files"))
            found = {"reward": history["rewards"], "loss": history["losses"]}
            return {name: [each.number(nan=True) for each in values.items()] for name, values in found.items()}
    return None
