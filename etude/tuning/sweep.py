"""Sweeps: many seeds of one config, as few programs as there are cores, and what they came to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

import etude.checkpoint as checkpoint
from etude.agent import Agent
from etude.base import checks
from etude.base.cores import usable_cores
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Collected, Event, Finished, Warned
from etude.checkpoint.config_json import to_json
from etude.checkpoint.plain import read_object
from etude.checkpoint.run_directory import RunDirectory
from etude.envs.faults import report_of
from etude.report.pictures import table_as_html
from etude.report.plots import draw_runs
from etude.report.records import JsonLines
from etude.report.series import EVALUATION, TRAINING, Series, common_quantity, interquartile_mean, interval, read_run
from etude.run import Run, Schedule, from_state, load
from etude.run.group import RunGroup, reason_apart
from etude.training.description import RunDescription
from etude.training.schedule import whole_number
from etude.tuning.executors import Executor, ManyRuns, ProcessExecutor, SerialExecutor
from etude.tuning.journal import described_trials, difference, folder_of, header, locked, preset_steps
from etude.tuning.results import RESULTS, write_csv
from etude.tuning.segment import Ended, Noted, Segment, SegmentFailed, SegmentRuns

PICTURE = "curves.png"


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
        return _seed_folder(self.folder, seed)

    def load(self, seed: int, *arguments: Any, **options: Any) -> Run:
        """The run of a seed, to evaluate it or to train it on: `etude.load` of its directory."""
        return load(self.directory(seed), *arguments, **options)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """(header, a row for each seed, the best one first)."""
        rows = []
        for seed in sorted(self.seeds, key=lambda seed: -self.returns.get(seed, -np.inf)):
            step = max(RunDirectory(self.directory(seed)).saved(), default=0)
            value = f"{self.returns[seed]:.4g}" if seed in self.returns else "-"
            status = "failed" if seed in self.failed else "finished" if step >= self.steps else "unfinished"
            rows.append([str(seed), value, f"{step:,}", status])
        return ["seed", "return", "step", "status"], rows

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
        rows: list[list[Any]] = [["seed", "return", "directory", "failed"]]
        for seed in self.seeds:
            rows.append([seed, self.returns.get(seed, ""), self.directory(seed).name, self.failed.get(seed, "")])
        written = write_csv(self.folder / RESULTS, rows)
        if not self.series:
            return [written]
        self.plot()
        return [written, self.folder / PICTURE]


ROOT = Path("sweeps")  # where sweeps go whose folder is not given
HEADER = "sweep.json"
OTHER = ("run_dir", "replay_folder", "train_only", "callbacks")  # arguments of `Run` and `train` that runs cannot share


class Sweep(ManyRuns):
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
        if isinstance(algorithm, Mapping):
            raise ConfigError("A sweep trains one algorithm; a dict of policies has several. Train them with Run.")
        if refused := [name for name in (*OTHER, "seed") if name in further]:
            raise ConfigError(
                f"A sweep takes no {', '.join(refused)}: each of its runs has a seed and a run directory of its own. "
                "Leave it out, and give seeds= and folder=."
            )
        made = described_trials(algorithm, env, further)
        usual = preset_steps(made)
        if steps is None and usual is None:
            raise ConfigError(
                "steps is not given, and there is no preset: say how long runs last, as in steps=100_000."
            )
        self.steps: int = whole_number(usual if steps is None else steps)
        found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        if not found or any(type(seed) is not int or seed < 0 for seed in found) or len(set(found)) < len(found):
            raise ConfigError(
                f"seeds = {seeds!r}; expected how many, or whole numbers of at least 0, each once, as in range(32)."
            )
        self.seeds: tuple[int, ...] = found
        schedule = Schedule(evaluate_every, evaluate_episodes, save_every=save_every or max(1, self.steps // 4))
        self._made = made
        self._schedule = {
            name: getattr(schedule, name) for name in ("evaluate_every", "evaluate_episodes", "save_every")
        }
        if processes is None:
            processes = 1 if made.execution.device.startswith("cuda") else usable_cores()
        checks.whole_number("processes", processes, of=", or None")
        count = min(processes, len(self.seeds))
        self._at_most = count if executor is None else len(self.seeds)  # groups of seeds
        self._groups: tuple[tuple[int, ...], ...] = ()
        self._waiting: list[int] = []  # numbers of groups
        self._executor = executor or (SerialExecutor() if count == 1 else ProcessExecutor(count))
        self.at: dict[int, _SeedAt] = {}  # how far each run is
        self.failed: dict[int, str] = {}  # by seed, why its run cannot go on
        self.notes: list[str] = []  # warnings, with their seeds
        self.folder: Path = folder_of(folder, ROOT, self.name)
        self._lock = locked(self.folder, "sweep")
        try:
            self._check_header()
        except BaseException:
            self.close()
            raise

    # -- what there is -------------------------------------------------------------------------------------------------

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
        unfinished = (seed for seed in self.seeds if not _is_finished(self.folder, seed, self.steps))
        return [seed for seed in unfinished if seed not in self.failed]

    # -- carrying it out -----------------------------------------------------------------------------------------------

    def run(self, callbacks: Any = ()) -> SweepResult:
        """Train all runs to their end, or to `stop`.

        callbacks: functions of the sweep, called whenever there is something new of a run. Ctrl-C, SIGTERM and SIGHUP
        save the runs and end; made again with the same folder, the sweep goes on.
        """
        self.failed, self._groups = {}, _divided(self._left(), self._at_most)
        self._waiting = list(range(len(self._groups)))
        settings = _SweepSettings(str(self.folder.absolute()), self._made, self._groups, self.steps, self._schedule)
        if self._groups:
            self._carry_out(settings, callbacks)
        return self.result

    def close(self) -> None:
        """Let other processes carry the sweep on. May be called twice."""
        self._lock.release()

    def _following(self) -> Segment | None:
        if not self._waiting:
            return None
        number = self._executor.choose(self._waiting)
        self._waiting.remove(number)
        return Segment(number, {}, None, 0, self.steps)

    def _record(self, report: Any) -> None:
        if isinstance(report, _SeedAt):
            self.at[report.seed] = report
        elif isinstance(report, _SeedFailed):
            self.failed[report.seed] = report.reason
        elif isinstance(report, SegmentFailed):
            lost = [seed for seed in self._groups[report.trial] if not _is_finished(self.folder, seed, self.steps)]
            self.failed |= dict.fromkeys(lost, report.reason)
        elif isinstance(report, Noted):
            self.notes.append(report.text)

    def _check_header(self) -> None:
        """Write what the sweep was asked for, or compare it with what is there."""
        plan = {"steps": self.steps, "seeds": self.seeds, **self._schedule}
        path, asked = self.folder / HEADER, json.loads(json.dumps({**header(self._made), "sweep": to_json(plan)}))
        if not path.exists():
            if any(self.folder.glob("seed-*")):
                raise ConfigError(f"{self.folder} holds runs, and no {HEADER}. Give the sweep a folder of its own.")
        elif different := difference(self._grown(path, asked["sweep"]), asked, self._made.own_config):
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


def sweep(
    algorithm: str | Agent, env: Any, *, seeds: int | Iterable[int] = 10, steps: int | None = None,
    callbacks: Any = (), **further: Any,
) -> SweepResult:  # fmt: skip
    """Train one config with many seeds, and return what they came to. callbacks: see `Sweep.run`. Other arguments: see
    `Sweep`."""
    with Sweep(algorithm, env, seeds=seeds, steps=steps, **further) as made:
        return made.run(callbacks)


def _divided(seeds: list[int], groups: int) -> tuple[tuple[int, ...], ...]:
    """The seeds in so many groups of nearly equal sizes, or fewer."""
    groups = min(groups, len(seeds))
    ends = [len(seeds) * i // groups for i in range(groups + 1)] if groups else [0]
    return tuple(tuple(seeds[low:high]) for low, high in zip(ends, ends[1:], strict=False))


KEEP = 2  # checkpoints of a run
RECENT = 20  # episodes of the mean return that is reported while a run goes on
SECONDS = 0.5  # between two reports of a run


class _SeedAt(NamedTuple):
    """How far the run of a seed is. mean: return of its last episodes; None before the first has ended."""

    seed: int
    step: int
    mean: float | None


class _SeedFailed(NamedTuple):
    """The run of a seed cannot go on."""

    seed: int
    reason: str


SeedReport = _SeedAt | _SeedFailed | Noted
SavedRun = tuple[int, RunDirectory, Path | None]  # a seed, and the checkpoint that it goes on from; None: it begins


def _seed_folder(folder: str | Path, seed: int) -> Path:
    """The run directory of a seed."""
    return Path(folder) / f"seed-{seed:04d}"


def _is_finished(folder: str | Path, seed: int, steps: int) -> bool:
    """Whether the run of a seed has taken all its steps."""
    return max(RunDirectory(_seed_folder(folder, seed)).saved(), default=0) >= steps


@dataclass(frozen=True)
class _SweepSettings(SegmentRuns):
    """What all runs of a sweep have in common, a `segment.SegmentSettings`; and what trains those of one group of seeds
    after the other, in a process.

    made: what makes a run, with a seed of its own. groups: the seeds of each process. steps: environment steps of a
    run. schedule: when runs evaluate and save, the other arguments of `Run.steps`.
    """

    worker: ClassVar[str] = "Sweep worker"
    loss: ClassVar[str] = "its runs go on from their checkpoints"

    folder: str
    made: RunDescription
    groups: tuple[tuple[int, ...], ...]
    steps: int
    schedule: Mapping[str, Any]
    stopped: Callable[[], bool] = lambda: False  # asked after every event; where it is so, the runs are saved and end

    def runs(self, stopped: Callable[[], bool]) -> _SweepSettings:
        """What trains the runs of a group in this process."""
        return replace(self, stopped=stopped)

    def on(self, device: str) -> _SweepSettings:
        """The same on another device."""
        return replace(self, made=self.made.with_execution(device=device))

    def carry_out(self, segment: Segment) -> Iterator[SeedReport | Ended | SegmentFailed]:
        """Train the runs of the group `segment.trial` to their end. What goes wrong with all ends in SegmentFailed."""
        seeds = self.groups[segment.trial]
        with ExitStack() as stack:
            try:
                directories = [RunDirectory(_seed_folder(self.folder, seed), KEEP) for seed in seeds]
                for directory in directories:
                    stack.enter_context(directory)
                    directory.checkpoints.mkdir(parents=True, exist_ok=True)
                    directory.lock()
                with Run.of(self.made.with_execution(seed=seeds[0])) as run:
                    apart = reason_apart(run)
                if apart is not None and len(seeds) > 1:
                    text = f"The runs of a process are trained one after the other: {apart}."
                    yield Noted(segment.trial, text)
                # The runs that are trained together, each with the checkpoint that it goes on from: the newest that all
                # of them have, if there is one; otherwise those together whose newest ones are of the same step
                together = apart is None
                saved = {directory: _complete(directory) for directory in directories}
                shared = max(set.intersection(*map(set, saved.values())), default=0)
                alike = together and (shared > 0 or not any(saved.values()))
                parts: dict[Any, list[SavedRun]] = {}
                for directory, own in saved.items():
                    seed = int(directory.path.name.rpartition("-")[2])
                    step = shared if alike else max(own, default=0)
                    parts.setdefault(step if together else seed, []).append((seed, directory, own.get(step)))
                for part in list(parts.values()):
                    if not self.stopped():
                        yield from self._trained(part)
                yield Ended(segment.trial, segment.until, "interrupted" if self.stopped() else "steps", None)
            except Exception as error:  # whatever an environment raises: the other groups go on
                yield SegmentFailed(segment.trial, report_of(error))

    def _trained(self, part: Sequence[SavedRun]) -> Iterator[SeedReport]:
        """Train runs together."""
        with ExitStack() as stack:
            runs, reporters = [], []
            for seed, directory, path in part:
                made = self.made.with_execution(seed=seed)
                run = Run.of(made) if path is None else from_state(checkpoint.read(path), trust=True, **made.loading())
                stack.enter_context(run)
                run.directory = directory
                about = {**run.description(), "total": self.steps, "schedule": Schedule(**self.schedule).plain()}
                directory.write_config(about)
                lines = stack.enter_context(closing(JsonLines(directory.metrics)))
                runs.append(run)
                reporters.append(_SeedReporter(seed, lines))
            group = RunGroup(runs)
            for i, event in group.steps_until(self.steps, **self.schedule):
                yield from reporters[i](event)
                if self.stopped():
                    group.stop()
            for i, error in group.errors.items():
                yield _SeedFailed(part[i][0], report_of(error))


def _complete(directory: RunDirectory) -> dict[int, Path]:
    """The checkpoints of a run by step, without damaged ones."""
    found = {}
    for step, path in directory.saved().items():
        with suppress(CheckpointError):
            checkpoint.verify(path)
            found[step] = path
    return found


class _SeedReporter:
    """Writes the metrics of a run, and reports now and then how far it is."""

    def __init__(self, seed: int, lines: JsonLines):
        self._seed, self._lines = seed, lines
        self._returns: list[float] = []
        self._next = 0.0

    def __call__(self, event: Event) -> Iterator[SeedReport]:
        self._lines(event)
        if isinstance(event, Collected):
            self._returns = [*self._returns, *(end.total for end in event.episodes)][-RECENT:]
            if time.monotonic() >= self._next:
                yield self._at(event.step)
        elif isinstance(event, Warned):
            yield Noted(self._seed, f"seed {self._seed}: {event.message}")
        elif isinstance(event, Finished):
            yield self._at(event.step)

    def _at(self, step: int) -> _SeedAt:
        self._next = time.monotonic() + SECONDS
        return _SeedAt(self._seed, step, float(np.mean(self._returns)) if self._returns else None)
