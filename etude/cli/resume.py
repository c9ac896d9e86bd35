"""`etude resume`: continue a run."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.checkpoint.old_names import present_state
from etude.cli.options import one_run, parse, run_arguments, shown, split_positionals, takes, with_address
from etude.cli.output import say
from etude.cli.train import played_by


@dataclass(frozen=True)
@takes(
    "steps target engine device devices envs workers ray online data_share run_dir env serve certificate key "
    "replay_folder output output_format verbose quiet trust"
)
@takes("target engine device workers env replay_folder output output_format", kept=True)
class Resume:
    """Continue RUN, a run directory, from its newest complete checkpoint, exactly as if it had not stopped.

    Hyperparameters change by --set.*, as in `etude train`: `etude resume RUN --help` lists them as they were saved.

    With --online, a run that learned from recorded data alone goes on in its environment as a new run: with its
    weights, its optimizer, and --data-share of every batch from the data.
    """

    steps: int | None = None  # environment steps of the whole run, including those taken; None: as before
    envs: int | None = None  # environments stepped in parallel; None: as before. With others, open episodes begin anew.
    online: bool = False  # go on with collected steps in a new directory; for a run that learned from data alone
    data_share: float = 0.5  # --online: the part of every batch that stays recorded data; 0: none
    run_dir: Path | None = None  # --online: directory of the new run; None: a new one in runs/
    serve: str | None = None  # listen at HOST:PORT for clients; --env then names their spaces, as --spaces of train
    trust: bool = False  # import and write to what RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Train on."""
    names, rest = split_positionals(with_address(arguments))
    listed = "--help" in rest and len(names) == 1 and Path(names[0]).is_dir()
    changes = listed or any(argument.startswith("--set") for argument in rest)
    offered: Any = _with_hyperparameters(one_run(names, "resume")) if changes else Resume
    options: Any = parse(offered, rest, "resume RUN")
    path = one_run(names, "resume")
    if options.online:
        return _go_online(path, options)
    if options.run_dir is not None:
        raise ConfigError("--run-dir goes with --online, which makes a new run; resume continues RUN in its directory.")
    return _resume(path, options)


def _with_hyperparameters(path: Path) -> type:
    """`Resume` with a field `set`, the config that the run was saved with."""
    from etude.checkpoint.run_directory import read_run
    from etude.training.assembly.described import check_description, config_from

    saved = read_run(path, ("description", "rollout"), ("replay", "recorded", "engine", "waiting")).state
    described = check_description(present_state(saved))
    if "learners" in described:
        raise ConfigError(
            "--set changes the config of one algorithm, and this run has the policies "
            f"{', '.join(described['learners'])}. Load it in Python, with an agent for each that changes: "
            "etude.load(path, agent={...})."
        )
    config = config_from(described)
    field = ("set", type(config), dataclasses.field(default=config))
    made = dataclasses.make_dataclass(Resume.__name__, [field], bases=(Resume,), frozen=True)
    made.__doc__ = Resume.__doc__
    return made


def _resume(path: Path, options: Any) -> int:
    from etude.cli.train import Output, carry_out
    from etude.run import Schedule, resumed

    display, changed = shown(options), _changed(options)
    run = resumed(path, trust=options.trust, **changed)
    assert run.directory is not None
    with run.directory as directory, run:
        for note in directory.notes if display != "nothing" else []:
            say(note)
        total = options.steps or run.learner.progress.total
        if total <= run.step:
            raise ConfigError(
                f"This run has taken {run.step:,} of {total:,} steps. To continue, give a larger total: "
                f"etude resume {shlex.quote(str(path))} --steps {2 * run.step}"
            )
        config = directory.read_config()
        if config.get("clients") and options.env is None:
            raise ConfigError(
                "Clients played in this run: --serve HOST:PORT --env SPACES listens for them again, --env ENV goes on "
                "in an environment here."
            )
        try:
            schedule = Schedule(**config["schedule"])
        except (KeyError, TypeError) as error:  # no schedule, no dict, or a name that it does not have
            held = f"{config.get('schedule', 'missing')!r:.60} ({error})"
            raise ConfigError(
                f"{directory.config}: schedule is {held}; expected the arguments of `train` by name. The file "
                f"was changed. The checkpoints go on without it: etude.resume({str(path)!r}).train(steps)."
            ) from error
        if options.target is not None:
            schedule = dataclasses.replace(schedule, target=options.target)
        recorded = Output.resumed(config.get("output"), options.trust or options.output is not None)
        format = options.output_format or (recorded.format if recorded is not None else "parquet")
        output = recorded if options.output is None else Output(str(options.output), format)
        return carry_out(run, total - run.step, schedule, display, output)


def _go_online(path: Path, options: Any) -> int:
    from etude.checkpoint.run_directory import RunDirectory, read_run
    from etude.cli.train import EVALUATION_SHARE, Output, carry_out
    from etude.run import COMPONENTS, Schedule, from_state
    from etude.training.assembly.replicas import directory_for

    if options.steps is None:
        raise ConfigError("--online makes a new run of environment steps: say how many, as in --steps 50000.")
    display, changed = shown(options), _changed(options)
    collecting = {name: changed.pop(name) for name in ("workers", "ray", "replay_folder") if name in changed}
    loaded = read_run(path, COMPONENTS)
    for note in loaded.notes if display != "nothing" else []:
        say(note)
    with (
        from_state(loaded.state, trust=options.trust, **changed) as run,
        run.go_online(options.data_share, **collecting) as online,
    ):
        env = online.description()["environment"]
        name = f"{online.algorithm}-{env}-s{online.execution.seed}-online"
        online.directory = directory_for(online.group, lambda: RunDirectory.create(options.run_dir, name))
        schedule = Schedule(
            target=options.target,
            evaluate_every=max(1, options.steps // 20),
            save_every=max(1, options.steps // 10),
            evaluate_share=EVALUATION_SHARE if options.target is None else None,
        )
        with online.directory:
            output = None if options.output is None else Output(str(options.output), options.output_format or "parquet")
            return carry_out(online, options.steps, schedule, display, output)


def _changed(options: Any) -> dict[str, Any]:
    """What differs from the run that goes on."""
    given = run_arguments(options)
    saved = {field.name: field.default for field in dataclasses.fields(options)}.get("set")
    if saved is not None and options.set != saved:
        given["config"] = options.set
    if options.serve is not None and options.env is None:
        raise ConfigError("--serve goes with --env, which names the spaces of what clients play.")
    env = played_by(options, options.env)
    return given if env is None else {**given, "env": env}
