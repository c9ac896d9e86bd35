"""The runs of a sweep in one process: those of a group of seeds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import etude.checkpoint as checkpoint
from etude.base.errors import CheckpointError
from etude.base.events import Collected, Event, Finished, Warned
from etude.checkpoint.run_directory import RunDirectory
from etude.envs.faults import report_of
from etude.report.records import JsonLines
from etude.run import Run, Schedule, from_state
from etude.run.group import RunGroup, reason_apart
from etude.training.description import RunDescription
from etude.tuning.segment import Ended, Segment, SegmentFailed

KEEP = 2  # checkpoints of a run
RECENT = 20  # episodes of the mean return that is reported while a run goes on
SECONDS = 0.5  # between two reports of a run


class SeedAt(NamedTuple):
    """How far the run of a seed is. mean: return of its last episodes; None before the first has ended."""

    seed: int
    step: int
    mean: float | None


class SeedNoted(NamedTuple):
    """A warning of the run of a seed; of the whole group where `seed` is None."""

    seed: int | None
    text: str


class SeedEnded(NamedTuple):
    """The run of a seed is saved and over, for now. reason: "steps" or "interrupted"."""

    seed: int
    step: int
    reason: str


class SeedFailed(NamedTuple):
    """The run of a seed cannot go on."""

    seed: int
    reason: str


class SavedRun(NamedTuple):
    """The run of a seed, and the checkpoint that it goes on from; None: it begins."""

    seed: int
    directory: RunDirectory
    path: Path | None


SeedReport = SeedAt | SeedNoted | SeedEnded | SeedFailed


class SweepSettings(NamedTuple):
    """What all runs of a sweep have in common; travels to worker processes by cloudpickle.

    made: what makes a run, with a seed of its own. groups: the seeds of each process. steps: environment steps of a
    run. schedule: when runs evaluate and save, the other arguments of `Run.steps`.
    """

    folder: str
    made: RunDescription
    groups: tuple[tuple[int, ...], ...]
    steps: int
    schedule: Mapping[str, Any]

    @property
    def worker(self) -> str:
        """What messages call a worker process."""
        return "Sweep worker"

    @property
    def loss(self) -> str:
        """What is lost where one is replaced."""
        return "its runs go on from their checkpoints"

    def runs(self, stopped: Callable[[], bool]) -> SeedRuns:
        """What trains the runs of a group."""
        return SeedRuns(self, stopped)

    def on(self, device: str) -> SweepSettings:
        """The same on another device."""
        return self._replace(made=self.made.with_execution(device=device))


def seed_folder(folder: str | Path, seed: int) -> Path:
    """The run directory of a seed."""
    return Path(folder) / f"seed-{seed:04d}"


def is_finished(folder: str | Path, seed: int, steps: int) -> bool:
    """Whether the run of a seed has taken all its steps."""
    return max(RunDirectory(seed_folder(folder, seed)).saved(), default=0) >= steps


class SeedRuns:
    """Trains the runs of one group of seeds after the other. stopped: asked after every event; where it returns True,
    the runs are saved and end."""

    def __init__(self, settings: SweepSettings, stopped: Callable[[], bool]):
        self._settings, self._stopped = settings, stopped

    def carry_out(self, segment: Segment) -> Iterator[SeedReport | Ended | SegmentFailed]:
        """Train the runs of the group `segment.trial` to their end. What goes wrong with all ends in SegmentFailed."""
        seeds = self._settings.groups[segment.trial]
        with ExitStack() as stack:
            try:
                directories = [stack.enter_context(self._directory(seed)) for seed in seeds]
                with self._new(seeds[0]) as run:
                    apart = reason_apart(run)
                if apart is not None and len(seeds) > 1:
                    yield SeedNoted(None, f"The runs of a process are trained one after the other: {apart}.")
                for part in _parts(directories, apart is None):
                    if not self._stopped():
                        yield from self._trained(part)
                yield Ended(segment.trial, segment.until, "interrupted" if self._stopped() else "steps", None)
            except Exception as error:  # whatever an environment raises: the other groups go on
                yield SegmentFailed(segment.trial, report_of(error))

    def close(self) -> None:
        """Nothing is kept from one group to the next."""

    def _directory(self, seed: int) -> RunDirectory:
        directory = RunDirectory(seed_folder(self._settings.folder, seed), KEEP)
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        directory.lock()
        return directory

    def _new(self, seed: int) -> Run:
        return Run.of(self._settings.made.with_execution(seed=seed))

    def _loaded(self, seed: int, path: Path) -> Run:
        made = self._settings.made.with_execution(seed=seed)
        return from_state(checkpoint.read(path), trust=True, **made.loading())

    def _trained(self, part: Sequence[SavedRun]) -> Iterator[SeedReport]:
        """Train runs together."""
        settings, schedule = self._settings, dict(self._settings.schedule)
        with ExitStack() as stack:
            runs, reporters = [], []
            for seed, directory, path in part:
                run = stack.enter_context(self._new(seed) if path is None else self._loaded(seed, path))
                run.directory = directory
                about = {**run.description(), "total": settings.steps, "schedule": Schedule(**schedule).plain()}
                directory.write_config(about)
                lines = stack.enter_context(closing(JsonLines(directory.metrics)))
                runs.append(run)
                reporters.append(SeedReporter(seed, lines))
            group = RunGroup(runs)
            for i, event in group.steps_until(settings.steps, **schedule):
                yield from reporters[i](event)
                if self._stopped():
                    group.stop()
            for i, error in group.errors.items():
                yield SeedFailed(part[i].seed, report_of(error))


def _parts(directories: Sequence[RunDirectory], together: bool) -> list[list[SavedRun]]:
    """The runs that are trained together, each with the checkpoint that it goes on from: the newest that all of them
    have, if there is one; otherwise those together whose newest ones are of the same step."""
    saved = {directory: _complete(directory) for directory in directories}
    shared = max(set.intersection(*map(set, saved.values())), default=0)
    alike = together and (shared > 0 or not any(saved.values()))
    parts: dict[Any, list[SavedRun]] = {}
    for directory, own in saved.items():
        seed = int(directory.path.name.rpartition("-")[2])
        step = shared if alike else max(own, default=0)
        parts.setdefault(step if together else seed, []).append(SavedRun(seed, directory, own.get(step)))
    return list(parts.values())


def _complete(directory: RunDirectory) -> dict[int, Path]:
    """The checkpoints of a run by step, without damaged ones."""
    found = {}
    for step, path in directory.saved().items():
        with contextlib.suppress(CheckpointError):
            checkpoint.verify(path)
            found[step] = path
    return found


class SeedReporter:
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
            yield SeedNoted(self._seed, event.message)
        elif isinstance(event, Finished):
            yield self._at(event.step)
            yield SeedEnded(self._seed, event.step, event.reason)

    def _at(self, step: int) -> SeedAt:
        self._next = time.monotonic() + SECONDS
        return SeedAt(self._seed, step, float(np.mean(self._returns)) if self._returns else None)
