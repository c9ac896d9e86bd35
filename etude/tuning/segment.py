"""A part of a trial, carried out where its run is."""

from __future__ import annotations

import operator
import shutil
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import etude.checkpoint as checkpoint
from etude.base.errors import ConfigError
from etude.base.events import Evaluated, Event, Finished, Warned
from etude.checkpoint.run_directory import RunDirectory
from etude.envs.faults import report_of
from etude.report.records import JsonLines
from etude.report.series import read_records
from etude.run import Run, Schedule, from_state
from etude.run.shared_rows import SharedReplay, with_rows
from etude.training.callbacks import CallbackList, as_list
from etude.training.description import RunDescription
from etude.training.loop import CollectionDue
from etude.tuning.trial import Genome, Score, StudyPlan, genome_from_json

START = "start.etude"  # the checkpoint of its parent that a trial starts from, in its run directory
KEEP = 2  # checkpoints of a trial
LIVE = 8  # runs that one process keeps between two segments

# From the run of a child, the state of its parent's, the parent's genome, and what made the child of it, as plain data:
# the state that the child restores.
Fit = Callable[[Run, dict[str, Any], Genome, dict[str, Any]], dict[str, Any]]


# From a run, how many steps to take, and when to evaluate and save (the other arguments of `Run.steps`): the events.
Train = Callable[..., Iterator[Event]]


def unchanged(child: Run, state: dict[str, Any], parent: Genome, change: dict[str, Any]) -> dict[str, Any]:
    """The state of a run as it is: for a child whose networks and replay have the shapes of its parent's."""
    return state


@dataclass(frozen=True)
class TrialTraining:
    """How each trial of a study is trained and evaluated.

    evaluate_every: steps of a trial between evaluations; None: a twentieth. evaluate_episodes: in each. evaluate_seed:
        of these episodes; None: each trial its own.
    target: a trial is finished when the mean return of an evaluation reaches it.
    save_every: steps between checkpoints within a segment; None: a tenth.
    callbacks: called with nothing for each trial, returns callbacks of its run, which live until it is over, or goes on
        in another process. Sent to worker processes, and not stored.
    fit: what a trial that begins as a copy restores of the state of its parent; see `Fit`.
    train: a function of (run, steps, **schedule) in the place of `run.steps(steps, **schedule)`: takes the run so many
        steps on, and yields the events. Sent to worker processes, and not stored.
    """

    evaluate_every: int | None = None
    evaluate_episodes: int = 10
    evaluate_seed: int | None = None
    target: float | None = None
    save_every: int | None = None
    shared_replay: bool = False  # members of off-policy algorithms store into one replay; with one job
    callbacks: Callable[[], Any] | None = None
    fit: Fit = unchanged
    train: Train = Run.steps


class SegmentRuns(Protocol):
    """Carries out segments in one process, such as `TrialRuns`."""

    def carry_out(self, segment: Segment) -> Iterator[Any]:
        """Yields reports, of which the last one is `Ended` or `SegmentFailed`."""

    def close(self) -> None:
        """End what is kept between segments, where something is. May be called twice."""
        return


class SegmentSettings(Protocol):
    """What all segments have in common, such as `TrialSettings`; travels to worker processes by cloudpickle.

    worker: what messages call a worker process. loss: what is lost where one is replaced.
    """

    worker: ClassVar[str]
    loss: ClassVar[str]

    def on(self, device: str) -> SegmentSettings:
        """The same on this device."""

    def runs(self, stopped: Callable[[], bool]) -> SegmentRuns:
        """What carries out segments in this process. stopped: to be asked often; shows that the process does not hang,
        and whether it is asked to stop."""


@dataclass(frozen=True)
class TrialSettings:
    """What all trials of a study have in common. made: what makes a trial, which gets a config and a seed of its own.
    keep: how many runs a process keeps."""

    worker: ClassVar[str] = "Trial worker"
    loss: ClassVar[str] = "its segment is repeated"

    folder: str
    made: RunDescription
    plan: StudyPlan
    training: TrialTraining = TrialTraining()
    keep: int = LIVE

    def runs(self, stopped: Callable[[], bool]) -> TrialRuns:
        """What carries out segments of its trials."""
        return TrialRuns(self, stopped)

    def on(self, device: str) -> TrialSettings:
        """The same on another device."""
        return replace(self, made=self.made.with_execution(device=device))


class Segment(NamedTuple):
    """What to carry out next of a trial, as plain data.

    genome: see `Genome.to_json`. parent: the genome of the trial whose checkpoint it starts from; None: it starts anew.
    step: where it is; 0 where it did not begin. until: where it goes. over: trials whose runs are no longer needed.
    change: what made it of its parent, as plain data. checkpoint: the name of its newest one in the journal; "" where
    there is none. replay_of: the trial whose checkpoint has the replay that all share; None: there is none yet.
    """

    trial: int
    genome: dict[str, Any]
    parent: dict[str, Any] | None
    step: int
    until: int
    over: tuple[int, ...] = ()
    change: dict[str, Any] = {}
    checkpoint: str = ""
    replay_of: int | None = None


class Scored(NamedTuple):
    """A trial was evaluated."""

    trial: int
    score: Score


class Noted(NamedTuple):
    """A warning of a trial's run."""

    trial: int
    text: str


class Ended(NamedTuple):
    """A segment is carried out.

    reason: "steps", "target" or "interrupted". checkpoint: the name of that of this step; None where it could not be
    saved.
    """

    trial: int
    step: int
    reason: str
    checkpoint: str | None


class SegmentFailed(NamedTuple):
    """A trial cannot go on."""

    trial: int
    reason: str


Report = Scored | Noted | Ended | SegmentFailed


def trial_folder(folder: str | Path, number: int) -> Path:
    """The run directory of a trial."""
    return Path(folder) / f"trial-{number:04d}"


class TrialRuns:
    """The runs of trials in this process. They are kept between two segments, so that nothing is loaded again where a
    trial goes on; results do not depend on it.

    Callbacks are made when the trial begins in this process, and live through its segments until it is over. They are
    made anew where it went on in another process since.

    stopped: asked after every event; where it returns True, the segment is saved and ends.
    """

    def __init__(self, settings: TrialSettings, stopped: Callable[[], bool] = lambda: False):
        self._settings, self._stopped = settings, stopped
        self.jobs = 1  # segments in turns: if several, `carry_out` yields `CollectionDue`, too, before each collection
        self._live: OrderedDict[int, Run] = OrderedDict()  # the last used one is the last
        self._callbacks: dict[int, tuple[int, list[Any]]] = {}  # by trial, with the step up to which they were called
        self._shared = SharedReplay(Path(settings.folder))

    def carry_out(self, segment: Segment) -> Iterator[Report]:
        """Take a trial to the end of a segment. What goes wrong ends in SegmentFailed."""
        for number in segment.over:
            self._drop(number)
            self._callbacks.pop(number, None)
        directory: RunDirectory | None = None
        try:
            path = trial_folder(self._settings.folder, segment.trial)
            kind = self._shared.directory if self._settings.plan.shared_replay else RunDirectory
            directory = kind(path, KEEP)
            directory.checkpoints.mkdir(parents=True, exist_ok=True)
            directory.lock()
            if not directory.saved() and segment.trial not in self._live:
                directory.metrics.unlink(missing_ok=True)  # of an attempt before its first checkpoint
                directory.best.unlink(missing_ok=True)
            run, earlier = self._run(segment, directory)
            if self._settings.plan.shared_replay:
                saved = directory.saved()
                unknown = bool(saved) and saved[max(saved)].name != segment.checkpoint  # written just before a kill
                newest = segment.trial if unknown else segment.replay_of
                where = None if newest is None else trial_folder(self._settings.folder, newest)
                self._shared.store_into(run, where, own=newest == segment.trial)
            yield from (Scored(segment.trial, score) for score in earlier)
            target = self._settings.plan.target
            reached = target is not None and bool(earlier) and earlier[-1].mean >= target
            reason = "target" if reached else (yield from self._trained(segment, run, directory))
            last = directory.saved().get(run.step)
            if last is not None:
                (directory.path / START).unlink(missing_ok=True)
            yield Ended(segment.trial, run.step, reason, None if last is None else last.name)
        except Exception as error:  # whatever an environment raises: the other trials go on
            self._drop(segment.trial)
            self._callbacks.pop(segment.trial, None)
            if self._shared.forget():  # it holds what the trial stored since its last checkpoint: load all anew
                self.close()
            yield SegmentFailed(segment.trial, report_of(error))
        finally:
            if directory is not None:
                directory.close()

    def close(self) -> None:
        """End all runs. May be called twice."""
        for number in list(self._live):
            self._drop(number)

    def _drop(self, number: int) -> None:
        run = self._live.pop(number, None)
        if run is not None:
            with suppress(Exception):  # of an environment: what counts is saved
                run.close()

    def _run(self, segment: Segment, directory: RunDirectory) -> tuple[Run, list[Score]]:
        """The run of the trial, and its scores so far where it was loaded: one may have been lost on its way."""
        run = self._live.get(segment.trial)
        if run is not None and run.step == segment.step:
            self._live.move_to_end(segment.trial)
            run.directory = directory
            return run, []
        self._drop(segment.trial)
        run, scores = self._opened(segment, directory)
        schedule = Schedule(**_schedule(self._settings.plan)).plain()
        directory.write_config({**run.description(), "total": run.learner.progress.total, "schedule": schedule})
        self._live[segment.trial] = run
        while len(self._live) > max(self._settings.keep, self.jobs):
            self._drop(next(iter(self._live)))
        return run, scores

    def _opened(self, segment: Segment, directory: RunDirectory) -> tuple[Run, list[Score]]:
        settings = self._settings
        base = settings.made.own_config
        genome = genome_from_json(segment.genome, base)
        made = settings.made.learning(genome.config).with_execution(seed=genome.seed)
        if directory.saved():
            loaded = directory.load()
            run = self._loaded(with_rows(loaded.state, loaded.path), made, directory)
            return run, scores_in(directory.metrics, run.step)
        if segment.parent is not None:
            parent = genome_from_json(segment.parent, base)
            state = with_rows(checkpoint.read(directory.path / START), directory.path / START)

            def fit(child: Run, state: dict[str, Any]) -> dict[str, Any]:
                return settings.training.fit(child, state, parent, segment.change)

            return self._loaded(state, made, directory, fit), []
        run = Run.of(made, directory)
        run.learner.progress.total = settings.plan.steps
        return run, []

    def _loaded(
        self,
        state: dict[str, Any],
        made: RunDescription,
        directory: RunDirectory,
        fit: Callable[[Run, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Run:
        run = from_state(state, run_dir=directory, trust=True, fit=fit, **made.loading())
        run.learner.progress.total = max(run.learner.progress.total, self._settings.plan.steps)
        return run

    def _trained(self, segment: Segment, run: Run, directory: RunDirectory) -> Generator[Report, None, str]:
        """Train to the end of the segment; returns why it ended."""
        reason = "steps"
        if run.step >= segment.until:
            return reason
        own = self._callbacks_at(segment.trial, run.step)
        with closing(JsonLines(directory.metrics)) as lines:
            call = CallbackList([lines, *own], run)
            schedule = _schedule(self._settings.plan)
            run.loop.paced = self.jobs > 1
            for event in self._settings.training.train(run, segment.until - run.step, **schedule):
                if isinstance(event, CollectionDue):
                    yield event  # type: ignore[misc]  # no report: see its class
                    continue
                call(event)
                if self._stopped():
                    run.stop()
                if isinstance(event, Evaluated):
                    yield Scored(segment.trial, Score(event.step, event.returns, sum(event.lengths)))
                elif isinstance(event, Warned):
                    yield Noted(segment.trial, event.message)
                reason = event.reason if isinstance(event, Finished) else reason
        self._callbacks[segment.trial] = (run.step, own)
        if reason == "steps" and run.step < segment.until:
            raise ConfigError(
                f"train= returned at step {run.step:,}; expected to be trained to step {segment.until:,}, with the "
                "events of run.steps(steps, **schedule)."
            )
        return reason

    def _callbacks_at(self, trial: int, step: int) -> list[Any]:
        """The callbacks of a trial: those that were called up to this step, or new ones."""
        called, made = self._callbacks.pop(trial, (-1, []))
        if called == step:
            return made
        make = self._settings.training.callbacks
        return as_list(make() if make is not None else ())


def _schedule(plan: StudyPlan) -> dict[str, Any]:
    """When the run of a trial evaluates and saves: the arguments of `Run.steps`."""
    evaluate = None
    if plan.evaluate_seed is not None:
        evaluate = operator.methodcaller("evaluate", plan.evaluate_episodes, plan.evaluate_seed)
    return {
        "evaluate_every": plan.evaluate_every,
        "evaluate_episodes": plan.evaluate_episodes,
        "evaluate": evaluate,
        "target": plan.target,
        "save_every": plan.save_every or max(1, plan.steps // 10),
    }


def scores_in(metrics: Path, step: int) -> list[Score]:
    """The evaluations of a run up to a step, from its metrics."""
    if not metrics.exists():
        return []
    records = [record for record in read_records(metrics) if "eval/returns" in record and record["step"] <= step]
    return [
        Score(
            record["step"],
            tuple(map(float, record["eval/returns"])),
            round(record.get("eval/mean_ep_length", 0.0) * len(record["eval/returns"])),
        )
        for record in records
    ]


def link_checkpoint(folder: Path, path: Path, number: int) -> None:
    """Put the checkpoint `path` of a parent into the run directory of trial `number`, which starts from it; it stays
    there while the parent goes on."""
    start = trial_folder(folder, number) / START
    start.parent.mkdir(parents=True, exist_ok=True)
    if start.exists():
        return
    temporary = checkpoint.temporary_beside(start)
    try:
        temporary.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, temporary)
    temporary.replace(start)
