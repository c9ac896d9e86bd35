"""`etude import`: models of other libraries as runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import UseAppendAction

from etude.cli.options import one_run, parse, run_arguments, split_positionals
from etude.cli.output import next_commands, say


@dataclass(frozen=True)
class Import:
    """Make a run directory of MODEL: a zip of Stable-Baselines3, or a state dict of CleanRL.

    Nothing in the file is executed. The run acts as the model does, and can be trained: `etude resume RUN --steps N`,
    or `etude train ALGORITHM ENV --start-from RUN --config RUN/config.json`.
    """

    env: str | None = None  # what it was trained on: an id, module:callable or file.py:callable; None: not known
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] | None = None  # None: what the file says, or the default
    vec_normalize: Path | None = (
        None  # file of VecNormalize.save; None: vec_normalize.pkl beside MODEL, if there is one
    )
    run_dir: Path | None = None  # directory of the run; None: a new one in runs/
    envs: int | None = None  # environments stepped in parallel; None: as the model was trained
    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of the environment's constructor
    wrapper: UseAppendAction[tuple[str, ...]] = ()  # module:Name of a wrapper; several are applied in order
    drop: UseAppendAction[tuple[str, ...]] = ()  # entry of Dict observations to leave out, such as mission
    frame_stack: int | None = None  # frames in an observation; None: 4 for Atari games (ALE/...), else 1
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    device: str = "auto"  # auto, cpu, cuda, cuda:1


def main(arguments: Sequence[str]) -> int:
    """Read the model, and say where the run is."""
    names, rest = split_positionals(arguments)
    options: Import = parse(Import, rest, "import MODEL")
    path = one_run(names, "import", "MODEL")
    from etude.checkpoint.run_directory import RunDirectory
    from etude.importing import read_model

    model = read_model(path, activation=options.activation, vec_normalize=options.vec_normalize)
    given = {name: value for name, value in run_arguments(options).items() if value is not None}
    name = "-".join(filter(None, (model.algorithm, options.env, "imported")))
    with model.run(options.env, **given) as run, RunDirectory.create(options.run_dir, name) as directory:
        model.save(run, directory)
    say(f"{path}: {model.algorithm}, of {model.library}")
    for note in model.notes:
        say(note)
    if options.env is None:
        say("The file does not name its environment: give it to the commands below, as in --env CartPole-v1.")
    next_commands(str(directory.path))
    return 0
