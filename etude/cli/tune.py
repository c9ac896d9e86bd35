"""`etude tune`: search the hyperparameters of an algorithm."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import UseAppendAction

from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.cli import INTERRUPTED
from etude.cli.options import (
    Quiet,
    executor,
    goes_on,
    parse,
    plain_value,
    resumed_options,
    run_arguments,
    schedule,
    with_address,
)
from etude.cli.output import rows, say
from etude.cli.train import STEPS, asked, data_sources

OF_STUDY = (
    "steps", "trials", "seeds", "folder", "evaluate_every", "evaluate_episodes", "target", "save_every", "seed",
    "workers",
)  # fmt: skip
SHOWN = 10  # configurations in the table at the end


@dataclass(frozen=True)
class Tune:
    """Search hyperparameters of ALGORITHM on ENV. The journal and a run directory for each trial go to a folder.

    --grid tries every value, --uniform, --log and --choice draw; each can be given again for another hyperparameter.
    `--set.*` sets the others. Ctrl-C saves the trials that are under way; --resume FOLDER goes on, also after a crash.
    """

    grid: UseAppendAction[tuple[tuple[str, ...], ...]] = ()  # NAME VALUE..., tried in all combinations
    uniform: UseAppendAction[tuple[tuple[str, str, str], ...]] = ()  # NAME LOW HIGH, drawn uniformly
    log: UseAppendAction[tuple[tuple[str, str, str], ...]] = ()  # NAME LOW HIGH, drawn with uniform logarithms
    choice: UseAppendAction[tuple[tuple[str, ...], ...]] = ()  # NAME VALUE..., drawn uniformly
    trials: int | None = None  # configurations to try; None: all points of the grid
    seeds: tuple[int, ...] = (0,)  # of the trials of each configuration; its score is the mean over them
    scheduler: Literal["none", "asha", "median", "pbt"] = "none"  # which trials stop early or are copied
    search: Literal["auto", "random", "tpe", "gp"] = "auto"  # auto: the grid, or independent draws; tpe, gp: Optuna
    min_steps: int | None = None  # asha: steps before the first comparison; None: by the number of configurations
    reduction: int = 3  # asha: one in so many goes on
    every: int | None = None  # median, pbt: steps between two comparisons; None: every evaluation, a tenth of a trial
    jobs: int = 1  # trials at a time, in worker processes; 1: this process
    ray: str | None = None  # trials run in --jobs Ray actors: local, auto or the address of a cluster; alone: local
    devices: tuple[str, ...] = ()  # of the worker processes, in turn; (): --device
    steps: int = STEPS  # environment steps of a trial
    target: float | None = None  # a trial ends when the mean return of an evaluation reaches it
    # -- further
    evaluate_every: int | None = None  # environment steps between evaluations of a trial; None: 20 times or fewer
    evaluate_episodes: int = 10  # whole episodes in an evaluation
    save_every: int | None = None  # environment steps between checkpoints of a trial; None: a tenth of it
    seed: int = 0  # of what the study draws
    folder: Path | None = None  # of the study; None: a new one in studies/
    resume: Path | None = None  # go on with the study in this folder; instead of ALGORITHM and ENV
    data: tuple[str, ...] = ()  # recorded episodes: file, folder or Minari id; =SHARE for several
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    envs: int | None = None  # environments stepped in parallel by each trial; None: as in etude train
    workers: int = 0  # worker processes that collect, for each trial; 0: the process of the trial
    network: Literal["auto", "mlp", "conv"] = "auto"  # configured by --set.network.*; auto: conv for images
    optimizer: Literal["auto", "adam", "adamw", "rmsprop", "sgd", "lion"] = "auto"  # configured by --set.optimizer.*
    config: Path | None = None  # TOML or JSON file of hyperparameters, or a run's config.json; --set.* take precedence
    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of ENV's constructor
    wrapper: UseAppendAction[tuple[str, ...]] = ()  # module:Name of a wrapper; several are applied in order
    drop: UseAppendAction[tuple[str, ...]] = ()  # entry of Dict observations to leave out, such as mission
    frame_stack: int | None = None  # frames in an observation of ENV; None: 4 for Atari games (ALE/...), else 1
    quiet: Quiet = False  # print nothing but errors
    trust: bool = False  # --resume: import the environment that the study names, though you did not make it here


def main(arguments: Sequence[str]) -> int:
    """Carry out a study, with a live table; then say what was best."""
    if goes_on(arguments):
        return _resume(parse(Tune, with_address(arguments), "tune"), arguments)
    return _tune(*asked(arguments, Tune, "tune", ", or --resume FOLDER alone"))


def _tune(algorithm: str, env: str, options: Any, config: Any) -> int:
    from etude.training.assembly.agents import config_for
    from etude.tuning import Study

    base = config_for(algorithm, env) if config is None else config
    given = {name: getattr(options, name) for name in OF_STUDY}
    study = Study(
        algorithm, env, _space(options, base), config=config, scheduler=_scheduler(options), search=_search(options),
        executor=executor(options.jobs, options.devices, options.ray), data=data_sources(options.data),
        **given, **run_arguments(options),
    )  # fmt: skip
    return _carry_out(study, options.quiet)


def _resume(options: Tune, rest: Sequence[str]) -> int:
    from etude.tuning import Study

    assert options.resume is not None
    changed = resumed_options(options, rest, ("device", "workers", "trials", "steps"))
    where = executor(options.jobs, options.devices, options.ray)
    study = Study.load(options.resume, trust=options.trust, executor=where, **changed)
    return _carry_out(study, options.quiet)


def _carry_out(study: Any, quiet: bool) -> int:
    from etude.report import StudyTable

    with study:
        if quiet:
            study.run()
        else:
            with closing(StudyTable()) as live:
                study.run(live)
        return _conclude(study, quiet)


def _conclude(study: Any, quiet: bool) -> int:
    code = 0 if study.finished else INTERRUPTED
    paths = study.write_results() if study.trials else []
    if quiet:
        return code
    header, lines = study.table()
    say()
    rows([header, *lines[:SHOWN]])
    say(f"\n{study.summary()}. {study.tuned_on()}")
    say("\n".join(str(path) for path in paths))
    if code:
        say(f"\nStopped, and saved. Continue with\n  etude tune --resume {shlex.quote(str(study.folder))}")
        return code
    if not any(trial.scores for trial in study.trials):
        say("\nNo trial was evaluated: the reasons are above.")
        return 1
    say(f"\nThe best configuration is in {study.best.directories[0]}")
    rows([(f"etude evaluate {study.best.directories[0]}", "the return over 20 episodes")], indent="  ")
    return 0


def _space(options: Tune, base: Any) -> dict[str, Any]:
    """The space that the options stand for; ConfigError for a hyperparameter that has none or several."""
    from etude.tuning import Choice, Log, Uniform

    space: dict[str, Any] = {}
    for option, given in (("grid", options.grid), ("choice", options.choice)):
        for name, *texts in filter(None, given):
            if not texts:
                raise ConfigError(
                    f"--{option} {name}: expected at least one value, as in --{option} {name} 0.01 0.001."
                )
            values = [_value(base, name, text) for text in texts]
            _add(space, name, values if option == "grid" else Choice(tuple(values)))
    for option, kind, intervals in (("uniform", Uniform, options.uniform), ("log", Log, options.log)):
        for name, low, high in intervals:
            _add(space, name, kind(_number(option, name, low), _number(option, name, high)))
    if not space:
        raise ConfigError(
            "Nothing to search: give --grid, --uniform, --log or --choice, as in --log learning-rate 1e-5 1e-2."
        )
    return space


def _add(space: dict[str, Any], name: str, domain: Any) -> None:
    name = name.replace("-", "_")
    if name in space:
        raise ConfigError(f"{name} is given twice. Give all its values at once: --grid {name} 0.01 0.001.")
    space[name] = domain


def _value(base: Any, name: str, text: str) -> Any:
    """A value of a field as --set takes it: a schedule where the field takes one."""
    from etude.tuning.space import field_type

    if field_type(base, name.replace("-", "_")) == float | Linear:
        try:
            return schedule(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}.") from None
    return plain_value(text)


def _number(option: str, name: str, text: str) -> float:
    value = plain_value(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"--{option} {name}: {text!r} is no number; expected two, as in --{option} {name} 0.1 0.9.")
    return value


def _scheduler(options: Tune) -> Any:
    from etude.tuning import ASHA, PBT, MedianStopping

    if options.scheduler == "asha":
        return ASHA(options.min_steps, options.reduction)
    if options.scheduler == "median":
        return MedianStopping(options.every)
    return PBT(options.every) if options.scheduler == "pbt" else None


def _search(options: Tune) -> Any:
    from etude.tuning import OptunaSearch, RandomSearch

    if options.search == "auto":
        return None
    return RandomSearch() if options.search == "random" else OptunaSearch(options.search)
