"""Many short runs, or seeds, of one algorithm: `etude tune`, `find` and `sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import UseAppendAction

import etude.tuning as tuning
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.cli import INTERRUPTED
from etude.cli.options import (
    STEPS,
    OfRuns,
    OfStudies,
    asks_for_help,
    executor,
    goes_on,
    parse,
    plain_value,
    resumed,
    run_arguments,
    schedule,
    split_positionals,
    takes,
)
from etude.cli.output import rows, say
from etude.cli.runs import drawn
from etude.cli.train import asked, data_sources
from etude.optimizers import OPTIMIZERS

OF_STUDY = ("steps", "trials", "seeds", "folder")
OF_TRIALS = ("evaluate_every", "evaluate_episodes", "target", "save_every")  # how they are trained
SHOWN = 10  # configurations in the table at the end


@dataclass(frozen=True)
@takes("every steps target", further="evaluate_every evaluate_episodes save_every")
@takes("min_steps reduction", of=tuning.ASHA)
class Tune(OfStudies):
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
    every: int | None = None  # median, pbt: steps between two comparisons; None: every evaluation, a tenth of a trial
    evaluate_every: int | None = None  # environment steps between evaluations of a trial; None: 20 times or fewer


def tune(arguments: Sequence[str]) -> int:
    """Carry out a study, with a live table; then say what was best."""
    if goes_on(arguments):
        load, differing = tuning.Study.load, ("device", "workers", "trials", "steps")
        study, options = resumed(Tune, arguments, "tune", load, *differing)
        return _carry_out(study, options.quiet)
    algorithm, env, options, config = asked(arguments, Tune, "tune", ", or --resume FOLDER alone")
    from etude.training.description import config_for

    base = config_for(algorithm, env) if config is None else config
    given = {name: getattr(options, name) for name in OF_STUDY}
    search: Any = None if options.search == "auto" else tuning.RandomSearch()
    if options.search not in ("auto", "random"):
        search = tuning.OptunaSearch(options.search)
    study = tuning.Study(
        algorithm, env, _space(options, base), config=config, scheduler=_scheduler(options), search=search,
        jobs=executor(options.jobs, options.devices, options.ray), data=data_sources(options.data),
        training=tuning.TrialTraining(**{name: getattr(options, name) for name in OF_TRIALS}), **given,
        **run_arguments(options, "ray", "devices"),
    )  # fmt: skip
    return _carry_out(study, options.quiet)


def _carry_out(study: Any, quiet: bool) -> int:
    from etude.report import StudyTable

    with study:
        run_shown(study, quiet, StudyTable)
        code = 0 if study.finished else INTERRUPTED
        paths = study.write_results() if study.trials else []
        if not quiet:
            header, lines = study.table()
            say()
            rows([header, *lines[:SHOWN]])
            say(f"\n{study.summary()}. {study.tuned_on()}")
            say("\n".join(str(path) for path in paths))
        if code:
            say(f"\nStopped, and saved. Continue with\n  etude tune --resume {shlex.quote(str(study.folder))}")
            return code
        if not any(trial.scores for trial in study.trials):
            reasons = " ".join(dict.fromkeys(trial.reason for trial in study.trials))
            say(f"\nNo trial was evaluated: {reasons if quiet else 'the reasons are above.'}")
            return 1
        best = study.best.directories[0]
        say(f"\nThe best configuration is in {best}")
        rows([(shlex.join(["etude", "evaluate", str(best)]), "the return over 20 episodes")], indent="  ")
        return 0


def run_shown(made: Any, quiet: bool, live_output: Callable[[], Any]) -> None:
    """Carry out a study or a sweep, and show how far it is."""
    if quiet:
        made.run()
        return
    with closing(live_output()) as live:
        made.run(live)


def _space(options: Any, base: Any) -> dict[str, Any]:
    """The space that the options stand for; ConfigError for a hyperparameter that has none or several."""
    space: dict[str, Any] = {}
    for option, given in (("grid", options.grid), ("choice", options.choice)):
        for name, *texts in filter(None, given):
            if not texts:
                raise ConfigError(
                    f"--{option} {name}: expected at least one value, as in --{option} {name} 0.01 0.001."
                )
            values = [_value(base, name, text) for text in texts]
            _add(space, name, values if option == "grid" else tuning.Choice(tuple(values)))
    for option, kind, intervals in (("uniform", tuning.Uniform, options.uniform), ("log", tuning.Log, options.log)):
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


def _scheduler(options: Any) -> Any:
    if options.scheduler == "asha":
        return tuning.ASHA(options.min_steps, options.reduction)
    if options.scheduler == "median":
        return tuning.MedianStopping(options.every)
    return tuning.PBT(options.every) if options.scheduler == "pbt" else None


USAGE = "find lr|optimizer ALGORITHM ENV"


@dataclass(frozen=True)
@takes("seed")
class FindOptions(OfRuns):
    """What both finders take."""

    steps: int = STEPS  # environment steps at most
    episodes: int | None = None  # end after so many episodes; None: no limit


@dataclass(frozen=True)
class FindRate(FindOptions):
    """Train ALGORITHM on ENV with a learning rate that grows from update to update, and suggest one: where reward or
    loss improves fastest, below where the loss diverges. Nothing is saved but the picture.
    """

    updates: int = 500  # gradient steps from the first rate to the last
    start_lr: float = 1e-5  # the first learning rate
    end_lr: float = 1.0  # the last learning rate
    window: int = 7  # episodes that normalise the reward in the picture
    plot: Path | None = None  # a picture of what the suggestion was read from: .png, .svg or .pdf


@dataclass(frozen=True)
class FindOptimizer(FindOptions):
    """Train ALGORITHM on ENV for a while with each of several optimizers, all from the same weights, and list mean
    reward and mean loss. Nothing is saved.
    """

    steps: int = 10_000  # environment steps of each candidate at most
    candidates: tuple[str, ...] = ("adam", "adamw", "rmsprop", "lion")  # NAME or NAME=LEARNING_RATE, with its defaults
    metric: Literal["reward", "loss"] = "reward"  # what the best one is the best by
    jobs: int | None = None  # candidates at a time, in worker processes; None: as many as cores; 1: this process


# Options of FindRate that `etude train` lacks, reads otherwise, or is given anew.
OF_THE_SEARCH = (
    "--steps", "--episodes", "--updates", "--start-lr", "--end-lr", "--window", "--plot", "--set.learning-rate"
)  # fmt: skip

KINDS: dict[str, type[FindOptions]] = {"lr": FindRate, "optimizer": FindOptimizer}


def find(arguments: Sequence[str]) -> int:
    """Find, and print what was found and why. Returns 1 where nothing was."""
    what = arguments[0] if arguments else ""
    if what not in KINDS:
        if asks_for_help(arguments):
            parse(FindRate, arguments, USAGE)
        raise ConfigError(
            f"find takes lr or optimizer, an algorithm and an environment, before its options; got "
            f"{' '.join(split_positionals(arguments)[0]) or 'nothing'}. Usage: etude {USAGE} [options]"
        )
    algorithm, env, options, config = asked(arguments[1:], KINDS[what], f"find {what}", steps=KINDS[what].steps)
    from etude.run import Run
    from etude.training.description import RunDescription

    given = {"config": config, **run_arguments(options)}
    with Run.of(RunDescription.of(algorithm, env, given)) as run:
        if what == "optimizer":
            finder = tuning.OptFinder(run, [_candidate(text) for text in options.candidates])
            logs = finder.find(
                episodes=options.episodes, metrics=options.metric, jobs=options.jobs, steps=options.steps
            )
            header, lines = finder.table()
            rows([header, *lines])
            if logs["best"] is None:
                say(f"No candidate has a mean {options.metric}: give more --steps, or see the reasons above.")
                return 1
            return 0
        kept: list[str] = []
        keeps = True
        for argument in arguments[3:]:
            if argument.startswith("--"):
                keeps = argument.partition("=")[0].replace("_", "-") not in OF_THE_SEARCH
            kept += [argument] if keeps else []
        return _find_rate(run, options, ["etude", "train", algorithm, env, *kept])


def _find_rate(run: Any, options: Any, training: list[str]) -> int:
    """training: the command that trains as the finder does."""
    finder = tuning.LRFinder(run)
    found = finder.find(
        N=options.updates, window_size=options.window, start_lr=options.start_lr, end_lr=options.end_lr,
        episodes=options.episodes, steps=options.steps,
    )  # fmt: skip
    if found.rate is None:
        say(f"No learning rate is suggested: {found.reason}")
    if options.plot is not None:
        with drawn(options.plot, "--plot", options.quiet):
            finder.plot(options.plot)
    if found.rate is None:
        return 1
    if options.quiet:
        say(f"{found.rate:.3g}")
        return 0
    say(f"Learning rate {found.rate:.3g}: {found.reason}")
    say(f"Seen in {len(finder.losses)} updates and {len(finder.rewards)} episodes.")
    say()
    rows([(shlex.join([*training, "--set.learning-rate", f"{found.rate:.3g}"]), "train with it")], indent="  ")
    return 0


def _candidate(text: str) -> Any:
    """The optimizer that NAME or NAME=LEARNING_RATE stands for; raises ConfigError."""
    name, given, rate = text.partition("=")
    try:
        optimizer = OPTIMIZERS[name]()
        return (optimizer, float(rate)) if given else optimizer
    except (KeyError, ValueError):
        raise ConfigError(
            f"--candidates {text}: expected {', '.join(OPTIMIZERS)}, or one of them with its learning rate, as in "
            "lion=1e-4."
        ) from None


OF_SWEEP = ("steps", "folder", "processes", "evaluate_every", "evaluate_episodes", "save_every")


@dataclass(frozen=True)
@takes(
    "seeds first_seed steps processes folder evaluate_every evaluate_episodes save_every", further="vectorization fused"
)
class SweepOptions(OfRuns):
    """Train ALGORITHM on ENV with many seeds of one config. Each seed has a run directory in the folder of the sweep.

    The seeds are divided over processes. Within one, the environments of all runs are stepped together, and the
    learning step is compiled once. Ctrl-C saves the runs; the same command with --folder goes on, also after a crash.
    """

    seeds: int = 10  # how many runs
    first_seed: int = 0  # of the first run; the others count on from it
    processes: int | None = None  # that train; None: as many as there are cores, or 1 with --device cuda
    evaluate_every: int | None = None  # environment steps between evaluations of a run; None: none, curves of training
    save_every: int | None = None  # environment steps between checkpoints of a run; None: a quarter of it


def sweep(arguments: Sequence[str]) -> int:
    """Train all seeds, with a progress bar; then list what they came to."""
    algorithm, env, options, config = asked(arguments, SweepOptions, "sweep")
    if options.seeds < 1 or options.first_seed < 0:
        raise ConfigError(
            f"--seeds {options.seeds} --first-seed {options.first_seed}: expected at least 1 seed, counted from 0 or "
            "more."
        )
    from etude.report import SweepProgress

    given = {name: getattr(options, name) for name in OF_SWEEP}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with tuning.Sweep(algorithm, env, seeds=seeds, config=config, **given, **run_arguments(options)) as sweep:
        run_shown(sweep, options.quiet, SweepProgress)
        result = sweep.result
        code = INTERRUPTED if not sweep.finished else 1 if sweep.failed else 0
        paths = result.write()
        header, lines = result.table()
        if not options.quiet:
            say()
            rows([header, *lines])
            say(f"\n{result.summary()}")
        for reason in dict.fromkeys(sweep.failed.values()):
            failed = ", ".join(str(seed) for seed, why in sweep.failed.items() if why == reason)
            say(f"\nFailed, and saved before: seed {failed}. {reason}")
        if options.quiet:
            return code
        if code:
            folder = [] if options.folder else ["--folder", str(sweep.folder)]
            command = shlex.join(["etude", "sweep", *arguments, *folder])
            say(f"\nGo on from the checkpoints in {sweep.folder} with\n  {command}")
        say()
        say("\n".join(map(str, paths)))
        best = result.directory(int(lines[0][0]))
        rows([(shlex.join(["etude", "evaluate", str(best)]), "the return of one run over 20 episodes"),
              (shlex.join(["etude", "plot", str(sweep.folder)]), "the mean learning curve")], indent="  ")  # fmt: skip
        return code
