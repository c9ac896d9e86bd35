"""`etude resume`: continue a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.base.errors import ConfigError
from etude.cli.options import Quiet, Verbose, one_run, parse, shown, split_positionals
from etude.cli.output import say


@dataclass(frozen=True)
class Resume:
    """Continue RUN, a run directory, from its newest complete checkpoint, exactly as if it had not stopped."""

    steps: int | None = None  # environment steps of the whole run, including those taken; None: as before
    target: float | None = None  # stop when the mean return of an evaluation reaches it; None: as before
    engine: Literal["auto", "jax", "torch", "tensorflow"] | None = None  # None: as before
    device: str | None = None  # None: as before
    workers: int | None = None  # worker processes that collect; None: as before. Results do not depend on it.
    env: str | None = None  # another environment with the same spaces; None: as before
    replay_folder: str | None = None  # memory-map the replay buffer here; None: as before
    output: str | None = None  # folder to record all episodes in; None: as before
    output_format: Literal["parquet", "hdf5", "jsonl", "minari"] | None = None  # of --output; None: as before
    verbose: Verbose = False  # print every event instead of a progress bar
    quiet: Quiet = False  # print nothing but errors
    trust: bool = False  # import and write to what RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Train on."""
    names, rest = split_positionals(arguments)
    options: Resume = parse(Resume, rest, "resume RUN")
    return _resume(one_run(names, "resume"), options)


def _resume(path: Path, options: Resume) -> int:
    from etude.checkpoint.run_directory import RunDirectory
    from etude.cli.sessions import Output, carry_out
    from etude.run import Schedule, from_state

    display = shown(options)
    given = {name: getattr(options, name) for name in ("engine", "device", "workers", "env", "replay_folder")}
    changed = {name: value for name, value in given.items() if value is not None}
    with RunDirectory.resume(path, trust=options.trust) as directory:
        loaded = directory.load()
        for note in [*directory.notes, *loaded.notes] if display != "nothing" else []:
            say(note)
        with from_state(loaded.state, run_dir=directory, trust=options.trust, **changed) as run:
            total = options.steps or run.learner.progress.total
            if total <= run.step:
                raise ConfigError(
                    f"This run has taken {run.step:,} of {total:,} steps. To continue, give a larger total: "
                    f"etude resume {path} --steps {2 * run.step}"
                )
            config = directory.read_config()
            schedule = Schedule(**config["schedule"])
            if options.target is not None:
                schedule = dataclasses.replace(schedule, target=options.target)
            recorded = Output.resumed(config.get("output"), options.trust or options.output is not None)
            format = options.output_format or (recorded.format if recorded is not None else "parquet")
            output = recorded if options.output is None else Output(options.output, format)
            return carry_out(run, total - run.step, schedule, display, output)
