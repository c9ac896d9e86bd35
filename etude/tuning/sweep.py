"""Sweeps: many seeds of one config, as few programs as there are cores, and what they came to."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

import etude.checkpoint as checkpoint
from etude.agent import Agent
from etude.base.cores import usable_cores
from etude.base.errors import CheckpointError, ConfigError
from etude.base.interrupt import obeying_signals
from etude.checkpoint import replacing
from etude.checkpoint.config_json import to_json
from etude.checkpoint.plain import read_object
from etude.checkpoint.run_directory import RunDirectory
from etude.report.pictures import table_as_html
from etude.report.plots import draw_runs
from etude.report.series import EVALUATION, TRAINING, Series, common_quantity, interquartile_mean, interval, read_run
from etude.run import Run, Schedule, load
from etude.training.callbacks import as_list
from etude.training.description import RunDescription
from etude.training.schedule import whole_number
from etude.tuning.executors import Executor, ProcessExecutor, SerialExecutor
from etude.tuning.experiment import described_trials, difference, header, preset_steps, study_name
from etude.tuning.journal import folder_of
from etude.tuning.seed_runs import (
    SeedAt,
    SeedEnded,
    SeedFailed,
    SeedNoted,
    SweepSettings,
    is_finished,
    seed_folder,
)
from etude.tuning.segment import Ended, Segment, SegmentFailed

CSV, PICTURE = "results.csv", "curves.png"


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep.

    seeds: all that were asked for. steps: of each run. failed: by seed, why its run could not go on.
    """

    folder: Path
    seeds: tuple[int, ...]
    steps: int
    failed: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def series(self) -> dict[int, Series]:
        """By seed, what its run measured; without seeds that have measured nothing."""
        found = {}
        for seed in self.seeds:
            try:
                found[seed] = read_run(self.directory(seed))
            except ConfigError:  # no episode has ended
                continue
        return found

    @cached_property
    def curves(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By seed, (environment steps, returns): of evaluations, or smoothed of training where some seed has fewer than
        two evaluations."""
        quantity = common_quantity([*self.series.values()])
        return {seed: own.of(quantity).curve() for seed, own in self.series.items()}

    @cached_property
    def returns(self) -> dict[int, float]:
        """By seed, the mean return of its last evaluation; where some seed has none, that of the last twentieth of
        training."""
        evaluated = all(own.evaluations for own in self.series.values())
        alike = {seed: own.of(EVALUATION if evaluated else TRAINING) for seed, own in self.series.items()}
        return {seed: own.score for seed, own in alike.items() if len(own.curve()[0])}

    @property
    def iqm(self) -> float:
        """The interquartile mean of `returns`; NaN where there are none."""
        values = np.array(list(self.returns.values()))
        return float(interquartile_mean(values)) if len(values) else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % percentile interval of `iqm`, by resampling the seeds. Agarwal et al. 2021, arXiv:2108.13264."""
        values = np.array(list(self.returns.values()))
        if not len(values):
            return float("nan"), float("nan")
        low, high = interval(values)
        return float(low), float(high)

    def directory(self, seed: int) -> Path:
        """The run directory of a seed."""
        if seed not in self.seeds:
            raise ConfigError(f"seed = {seed}; this sweep has the seeds {', '.join(map(str, self.seeds))}.")
        return seed_folder(self.folder, seed)

    def load(self, seed: int, *arguments: Any, **options: Any) -> Run:
        """The run of a seed, to evaluate it or to train it on: `etude.load` of its directory."""
        return load(self.directory(seed), *arguments, **options)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """(header, a row for each seed, the best one first)."""
        ranked = sorted(self.seeds, key=lambda seed: -self.returns.get(seed, -np.inf))
        return ["seed", "return", "step", "status"], [self._row(seed) for seed in ranked]

    def _row(self, seed: int) -> list[str]:
        step = max(RunDirectory(self.directory(seed)).saved(), default=0)
        value = f"{self.returns[seed]:.4g}" if seed in self.returns else "-"
        status = "failed" if seed in self.failed else "finished" if step >= self.steps else "unfinished"
        return [str(seed), value, f"{step:,}", status]

    def summary(self) -> str:
        """The seeds in a line."""
        if not self.returns:
            return "No seed has finished an episode yet."
        values, (low, high) = list(self.returns.values()), self.interval
        return (
            f"{len(values)} seeds: interquartile mean {self.iqm:.4g} (95 % interval {low:.4g} to {high:.4g}), mean "
            f"{np.mean(values):.4g}, from {min(values):.4g} to {max(values):.4g}"
        )

    def __repr__(self) -> str:
        return f"<SweepResult in {self.folder}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return table_as_html(repr(self), *self.table())

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw each seed, and their interquartile mean with its 95 % interval; returns the matplotlib figure. path:
        None for `curves.png` in the folder. options: of `etude.report.draw_runs`, such as statistic="median".
        ConfigError where there is nothing to draw."""
        return draw_runs(list(self.series.values()), self.folder / PICTURE if path is None else path, **options)

    def write(self) -> list[Path]:
        """Write `results.csv`, and `curves.png` where there is something to draw; returns their paths."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["seed", "return", "directory", "failed"])
        for seed in self.seeds:
            value = self.returns.get(seed, "")
            writer.writerow([seed, value, self.directory(seed).name, self.failed.get(seed, "")])
        with replacing(self.folder / CSV) as file:
            file.write(text.getvalue().encode())
        if not self.series:
            return [self.folder / CSV]
        self.plot()
        return [self.folder / CSV, self.folder / PICTURE]


ROOT = Path("sweeps")  # where sweeps go whose folder is not given
HEADER = "sweep.json"
OTHER = ("run_dir", "replay_folder", "train_only", "callbacks")  # arguments of `Run` and `train` that runs cannot share


class Sweep:
    """Trains one config with many seeds.

    The seeds are divided over processes. Within a process, environments of all runs are stepped together, one NumPy
    call acts for all of them, and the learn call is compiled once; each run has the numbers that it has alone. (One
    vectorised simulator, with `vectorization="native"`, draws the episodes of all runs, whose numbers then depend on
    which seeds share a process.) What cannot be stepped together is trained one run after the other; `notes` says why.

    algorithm, env, further: as `Run` takes them; config, and fields of it, may be among further.
    seeds: numbers, or how many (0, 1, ...).
    steps: environment steps of each run; None: those of the preset.
    folder: where the sweep is kept, with a run directory for each seed; None: a new one in `sweeps/`. A sweep that is
        there goes on from the checkpoints of its runs, if it was asked for the same.
    processes: worker processes; 1: this process; None: as many as there are cores, one where runs learn on a GPU.
        executor: in their place, one of your own.
    evaluate_every, evaluate_episodes: see `Schedule`; None: runs are not evaluated, and their curves are those of
        training.
    save_every: environment steps between checkpoints of a run, what a sweep that is killed loses at most; None: a
        quarter.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        *,
        seeds: int | Iterable[int] = 10,
        steps: int | None = None,
        folder: str | PathLike[str] | None = None,
        processes: int | None = None,
        executor: Executor | None = None,
        evaluate_every: int | None = None,
        evaluate_episodes: int = 10,
        save_every: int | None = None,
        **further: Any,
    ):
        made = _described(algorithm, env, further)
        self.steps: int = whole_number(_steps(made, steps))
        self.seeds: tuple[int, ...] = _seeds(seeds)
        schedule = Schedule(evaluate_every, evaluate_episodes, save_every=save_every or max(1, self.steps // 4))
        self._made = made
        self._schedule = {
            name: getattr(schedule, name) for name in ("evaluate_every", "evaluate_episodes", "save_every")
        }
        count = _processes(processes, len(self.seeds), made.execution.device)
        self._groups = count if executor is None else len(self.seeds)
        self._executor = executor or (SerialExecutor() if count == 1 else ProcessExecutor(count))
        self.at: dict[int, SeedAt] = {}  # how far each run is
        self.failed: dict[int, str] = {}  # by seed, why its run cannot go on
        self.notes: list[str] = []  # warnings, with their seeds
        self._stopping = False
        self._lock: checkpoint.Lock | None = None
        self._use_folder(folder)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The algorithm and the environment."""
        return study_name(self._made)

    @property
    def finished(self) -> bool:
        """Whether every run has taken all its steps, or failed."""
        return not self._left()

    @property
    def result(self) -> SweepResult:
        """What the runs have come to so far."""
        return SweepResult(self.folder, self.seeds, self.steps, dict(self.failed))

    def __repr__(self) -> str:
        done = len(self.seeds) - len(self._left()) - len(self.failed)
        return f"<Sweep of {self.name}: {done} of {len(self.seeds)} seeds finished, {len(self.failed)} failed>"

    def _left(self) -> list[int]:
        """The seeds whose runs have steps to take."""
        unfinished = (seed for seed in self.seeds if not is_finished(self.folder, seed, self.steps))
        return [seed for seed in unfinished if seed not in self.failed]

    # -- carrying it out -----------------------------------------------------------------------------------------------

    def run(self, callbacks: Any = ()) -> SweepResult:
        """Train all runs to their end, or to `stop`.

        callbacks: functions of the sweep, called whenever there is something new of a run. Ctrl-C, SIGTERM and SIGHUP
        save the runs and end; made again with the same folder, the sweep goes on.
        """
        self._stopping, self.failed, calls = False, {}, as_list(callbacks)
        waiting = dict(enumerate(_divided(self._left(), self._groups)))
        groups = tuple(waiting.values())
        settings = SweepSettings(str(self.folder.absolute()), self._made, groups, self.steps, self._schedule)
        begun = 0
        with obeying_signals(self.stop, lambda: None):
            try:
                if waiting:
                    self._executor.open(settings)
                while (waiting and not self._stopping) or begun:
                    while waiting and self._executor.free and not self._stopping:
                        number = self._executor.choose(list(waiting))
                        del waiting[number]
                        self._executor.begin(Segment(number, {}, None, 0, self.steps))
                        begun += 1
                    for report in self._executor.wait():
                        begun -= isinstance(report, Ended | SegmentFailed)
                        self._record(report, settings)
                        for call in calls:
                            call(self)
            finally:
                self._executor.close()
        return self.result

    def stop(self) -> None:
        """Ask the sweep to save its runs and to end."""
        self._stopping = True
        self._executor.stop()

    def close(self) -> None:
        """Let other processes carry the sweep on. May be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _record(self, report: Any, settings: SweepSettings) -> None:
        if isinstance(report, SeedAt):
            self.at[report.seed] = report
        elif isinstance(report, SeedFailed):
            self.failed[report.seed] = report.reason
        elif isinstance(report, SegmentFailed):
            lost = [seed for seed in settings.groups[report.trial] if not is_finished(self.folder, seed, self.steps)]
            self.failed |= dict.fromkeys(lost, report.reason)
        elif isinstance(report, SeedNoted):
            self.notes.append(report.text if report.seed is None else f"seed {report.seed}: {report.text}")
        elif not isinstance(report, Ended | SeedEnded):  # of a worker process that was replaced
            self.notes.append(report.text)

    def _use_folder(self, folder: str | PathLike[str] | None) -> None:
        self.folder: Path = folder_of(folder, ROOT, self.name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = checkpoint.Lock(self.folder / ".lock")
        except checkpoint.Locked as error:
            raise ConfigError(
                f"Another process carries out the sweep in {self.folder} ({error}). Wait until it has ended, or give "
                "another folder."
            ) from error
        except OSError as error:
            raise ConfigError(
                f"The folder {self.folder} of the sweep cannot be written to: {error.strerror}."
            ) from error
        try:
            self._check_header()
        except BaseException:
            self.close()
            raise

    def _check_header(self) -> None:
        """Write what the sweep was asked for, or compare it with what is there."""
        path, asked = self.folder / HEADER, json.loads(json.dumps(self._header()))
        if not path.exists():
            if any(self.folder.glob("seed-*")):
                raise ConfigError(f"{self.folder} holds runs, and no {HEADER}. Give the sweep a folder of its own.")
        elif different := difference(self._grown(path, asked["sweep"]), asked):
            raise ConfigError(
                f"The sweep in {self.folder} is another one: {different}. Go on with it as it was asked for, or with "
                "more seeds or steps; or give the new one a folder of its own."
            )
        with checkpoint.replacing(path) as file:
            file.write(json.dumps(asked, indent=2, allow_nan=False).encode() + b"\n")

    def _grown(self, path: Path, asked: dict[str, Any]) -> dict[str, Any]:
        """The header that is there; with the seeds and steps that are asked for now, where these are more."""
        try:
            held = read_object(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error}. Give the sweep another folder.") from error
        before: dict[str, Any] = held["sweep"] if isinstance(held.get("sweep"), dict) else {}
        steps, seeds = before.get("steps"), before.get("seeds")
        if type(steps) is int and isinstance(seeds, list) and steps <= self.steps and set(self.seeds).issuperset(seeds):
            may_differ = {name: asked[name] for name in ("steps", "seeds", "save_every")}
            held["sweep"] = {**before, **may_differ}
        return held

    def _header(self) -> dict[str, Any]:
        """What the sweep is, as plain data."""
        plan = {"steps": self.steps, "seeds": self.seeds, **self._schedule}
        return {**header(self._made), "sweep": to_json(plan)}


def sweep(
    algorithm: str | Agent, env: Any, *, seeds: int | Iterable[int] = 10, steps: int | None = None,
    callbacks: Any = (), **further: Any,
) -> SweepResult:  # fmt: skip
    """Train one config with many seeds, and return what they came to. callbacks: see `Sweep.run`. Other arguments: see
    `Sweep`."""
    with Sweep(algorithm, env, seeds=seeds, steps=steps, **further) as made:
        return made.run(callbacks)


def _described(algorithm: Any, env: Any, further: dict[str, Any]) -> RunDescription:
    if isinstance(algorithm, Mapping):
        raise ConfigError("A sweep trains one algorithm; a dict of policies has several. Train them with Run.")
    if refused := [name for name in (*OTHER, "seed") if name in further]:
        raise ConfigError(
            f"A sweep takes no {', '.join(refused)}: each of its runs has a seed and a run directory of its own. Leave "
            "it out, and give seeds= and folder=."
        )
    return described_trials(algorithm, env, further)


def _steps(made: RunDescription, steps: int | None) -> Any:
    usual = preset_steps(made)
    if steps is None and usual is None:
        raise ConfigError("steps is not given, and there is no preset: say how long runs last, as in steps=100_000.")
    return usual if steps is None else steps


def _seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not found or any(type(seed) is not int or seed < 0 for seed in found) or len(set(found)) < len(found):
        raise ConfigError(
            f"seeds = {seeds!r}; expected how many, or whole numbers of at least 0, each once, as in range(32)."
        )
    return found


def _processes(asked: int | None, seeds: int, device: str) -> int:
    if asked is None:
        return min(1 if device.startswith("cuda") else usable_cores(), seeds)
    if type(asked) is not int or asked < 1:
        raise ConfigError(f"processes = {asked!r}; expected a whole number of at least 1, or None.")
    return min(asked, seeds)


def _divided(seeds: list[int], groups: int) -> list[tuple[int, ...]]:
    """The seeds in so many groups of nearly equal sizes, or fewer."""
    groups = min(groups, len(seeds))
    ends = [len(seeds) * i // groups for i in range(groups + 1)] if groups else [0]
    return [tuple(seeds[low:high]) for low, high in zip(ends, ends[1:], strict=False)]
