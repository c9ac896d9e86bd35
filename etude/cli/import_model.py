"""`etude import`: models of other libraries as runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.cli.options import run_arguments, takes, with_path
from etude.cli.output import next_commands, say


@dataclass(frozen=True)
@takes("run_dir envs env_arg wrapper drop frame_stack engine device")
class Import:
    """Make a run directory of MODEL: a zip of Stable-Baselines3, or a state dict of CleanRL.

    Nothing in the file is executed. The run acts as the model does, and can be trained: `etude resume RUN --steps N`,
    or `etude train ALGORITHM ENV --start-from RUN --config RUN/config.json`.
    """

    env: str | None = None  # what it was trained on: an id, module:callable or file.py:callable; None: not known
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] | None = None  # None: what the file says, or the default
    vec_normalize: Path | None = None  # file of VecNormalize.save; None: vec_normalize.pkl beside MODEL, if it is there


def main(arguments: Sequence[str]) -> int:
    """Read the model, and say where the run is."""
    path, options = with_path(Import, arguments, "import", "MODEL")
    from etude.checkpoint.run_directory import RunDirectory
    from etude.importing import read_model

    model = read_model(path, activation=options.activation, vec_normalize=options.vec_normalize)
    name = "-".join(filter(None, (model.algorithm, options.env, "imported")))
    given = run_arguments(options)
    with model.run(options.env, **given) as run, RunDirectory.create(options.run_dir, name) as directory:
        model.save(run, directory)
    say(f"{path}: {model.algorithm}, of {model.library}")
    for note in model.notes:
        say(note)
    if options.env is None:
        say("The file does not name its environment: give it to the commands below, as in --env CartPole-v1.")
    next_commands(str(directory.path))
    return 0
