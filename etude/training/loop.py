"""The one loop: collect, add, sample, learn, load; and now and then evaluate and save. A generator of events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps, WorkerWarning
from etude.base.errors import CallbackError, EnvironmentFault, NumericalError, ReplicaError
from etude.base.events import Collected, Estimated, Evaluated, Event, Finished, Learned, Saved, Warned, WorkerReplaced
from etude.engines.divergence import Divergence
from etude.protocols import ProcessGroup, Weights
from etude.training.schedule import RunProgress, Schedule


class LoopProcesses:
    """The processes that run one loop together; `group` is None where there is one.

    give_up: ends the rollout of this process, whose state is no longer gathered.
    """

    def __init__(self, group: ProcessGroup | None, give_up: Callable[[], None]):
        self._group, self._give_up = group, give_up

    def requests(self, stop: str | None, save: bool) -> tuple[str | None, bool]:
        """(the reason to stop, whether to save), as was asked of any process."""
        if self._group is None:
            return stop, save
        asked = self._group.gather("requests", (stop, save))
        return next((reason for reason, _ in asked if reason is not None), None), any(each for _, each in asked)

    def failed(self, error: BaseException | None) -> None:
        """An error, if there is one, ends the loop: the group ends with it, unless all processes raise it."""
        in_all = error is None or getattr(error, "in_all_processes", False)
        if self._group is not None and not in_all:
            self._group.leave(f"{type(error).__name__}: {error}")
            self._give_up()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What fails within, or may fail in this process alone, such as a reporter: the group ends with it."""
        try:
            yield
        except GeneratorExit:  # events that nobody asked for any more
            raise
        except BaseException as error:
            self.failed(error)
            raise


Measure = Callable[[tuple[Steps, ...], int], dict[str, np.ndarray]]


class Learning(Protocol):
    """The learning half of a loop, such as `Learner`."""

    count: int  # environments that are collected from in one call

    @property
    def explores_anew(self) -> bool:
        """Whether the last call of `learn_if_due` has drawn noise in layers, which rollouts are to act with."""

    @property
    def progress(self) -> RunProgress:
        """What the run counts."""

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """What to collect next, at most `left` environment steps. after: time steps that are collected before."""

    def take(self, *parts: CollectedSteps) -> None:
        """Store and count collected steps. CallbackError where they cannot be rewritten: none is stored or counted."""

    def learn_if_due(self) -> Learned | None:
        """A learning phase, where one is due."""

    def follow_moments(self) -> bool:
        """Take what was stored last into the normaliser of observations, after learning; whether there was anything."""

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """The weights that rollouts act with, and their version."""

    def trained_weights(self) -> Weights:
        """What losses train, by name."""


class RunLearning(Learning, Protocol):
    """The same, saved and resumed, such as `Learner`."""

    def acting_weights(self) -> Weights:
        """What acting needs; nothing where the engine itself acts."""

    def state(self) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` goes on."""

    def policy_state(self) -> dict[str, Any]:
        """The part of `state` that `restore` needs to act only."""

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed; without its replay, to act only."""


class Collecting(Protocol):
    """The collecting half of a loop, such as `RolloutLifecycle`."""

    def open(self, total: int, weights: Weights, version: PolicyVersion) -> None:
        """Be ready to collect in a run of `total` steps."""

    def collect(self, request: CollectRequest, step: int, upcoming: int) -> tuple[CollectedSteps, ...]:
        """The requested steps, in parts that name their environments; none where nothing is collected."""

    def put_back(self, parts: tuple[CollectedSteps, ...]) -> None:
        """Return what was collected last from the next call of `collect` again, once the loop is opened again."""

    def load(self, weights: Weights, version: PolicyVersion) -> None:
        """Act with these weights, of this version, from the next collected step on."""

    @property
    def task(self) -> Any:
        """What environments are given when an episode begins; None: nothing was set."""

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin in what is collected from now on; see `Rollout`."""

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""

    def state(self) -> dict[str, Any] | None:
        """What `restore` continues from; None where there is nothing to save."""

    def check_state(self, saved: Stored, gradients: Weights) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing changes. gradients: like weights."""

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from `state`, which `check_state` has passed."""

    def close(self) -> None:
        """End workers and close environments; `open` starts them again. May be called twice."""

    def give_up(self) -> None:
        """End at once, without a state to go on from: new episodes begin when it is opened again."""


class Evaluator(Protocol):
    """What evaluates during training, in this process or beside it."""

    @property
    def pending(self) -> bool:
        """Whether an evaluation was begun beside training whose result was not returned yet."""

    def open(self, plan: Schedule) -> None:
        """Be ready to evaluate as a schedule says; go on with the evaluation that is pending."""

    def begin(self, plan: Schedule) -> None:
        """Evaluate the present policy beside training: it is pending from now on."""

    def result(self, plan: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        """The evaluation that is pending, or one of the present policy; None where `stopped` returns True before."""

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""


class CollectionDue(NamedTuple):
    """In the place of an event, where `Loop.paced`: the loop collects next. For whoever drives several loops, so that
    all have learned and saved before the first collects for all; callbacks do not get it."""

    step: int


class Loop:
    """Takes steps with one learner and one collection.

    overlap: whether workers collect ahead while the learner learns. save: writes a checkpoint of the kind "last" or
    "best", and yields the events of it; "best" is of what was evaluated last. evaluator: a loop without it takes no
    schedule of evaluations. measure: the custom metrics of collected steps at an environment step, by name;
    CallbackError where one raises. estimate: estimates the present policy from recorded episodes, or says why it
    cannot; a loop without it takes no schedule of estimates. group: the processes that stop and save together.
    """

    def __init__(
        self,
        learner: Learning,
        collection: Collecting,
        overlap: bool,
        save: Callable[[str], Iterator[Event]],
        evaluator: Evaluator | None = None,
        measure: Measure | None = None,
        estimate: Callable[[], Estimated | Warned] | None = None,
        group: ProcessGroup | None = None,
    ):
        self.learner: Learning = learner
        self._collection, self._overlap = collection, overlap
        self._save, self._evaluator, self._measure, self._estimate = save, evaluator, measure, estimate
        self.processes: LoopProcesses = LoopProcesses(group, collection.give_up)
        self._divergence = Divergence(learner.trained_weights)
        self._whole = True  # whether all that was collected is learned from: what a checkpoint may hold
        self._saved = 0  # the step of the last checkpoint
        self._clock = 0.0
        self._stop: str | None = None
        self._save_asked = False
        self._warned: set[str] = set()  # warnings that are given once
        self.paced = False  # yield `CollectionDue` before each collection, for loops that are collected for together

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.learner.progress.step

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the step at hand."""
        self._stop = reason

    def request_save(self) -> None:
        """Ask for a checkpoint after the step at hand."""
        self._save_asked = True

    def forget_requests(self) -> None:
        """Whatever was asked for before does not concern the steps to come."""
        self._stop, self._save_asked = None, False

    def steps(self, end: int, plan: Schedule) -> Iterator[Event]:
        """Up to environment step `end`. Whenever an event is yielded, all that was collected is learned from.

        Where the environment, a custom metric or a rewriter fails, a checkpoint is written before the error is raised;
        where numbers are not finite, none is.
        """
        progress = self.learner.progress
        self._saved, self._clock, self._whole = self.step, time.perf_counter(), True
        try:
            with self.processes.guarded():
                if self._evaluator is not None:
                    self._evaluator.open(plan)
                self._collection.open(progress.total, *self.learner.exploring_policy())
                reason = yield from self._until(end, plan)
        except (CallbackError, EnvironmentFault, KeyboardInterrupt, ReplicaError):
            yield from self.save_if_new()
            raise
        except NumericalError as error:
            raise NumericalError(self._divergence.explained(error, self.step, progress.gradient_steps)) from error
        yield from (Warned(self.step, note) for note in self._divergence.last_notes())
        if reason == "steps" and not progress.gradient_steps:
            yield from self._warn_once(_untrained(self.step), "untrained")
        yield from self._keep("last")
        self._count_seconds()
        totals = {"episodes": progress.episodes, "gradient_steps": progress.gradient_steps}
        yield Finished(self.step, reason, progress.seconds, totals)

    def save_if_new(self) -> Iterator[Event]:
        """Write a checkpoint, unless there is one of this step, or what was collected is not yet learned from."""
        if self._whole and self.step != self._saved:
            yield from self._keep("last")

    def _until(self, end: int, plan: Schedule) -> Generator[Event, None, str]:
        """Up to step `end`, or the reason to stop before."""
        if (yield from self._evaluate_if_due(self.step, end, plan)):  # one that was stopped
            return "target"
        again = self.processes.requests(self._stop, False)[0] if self.learner.progress.evaluation_due else None
        if again is not None and self.step < end:
            return again
        while self.step < end:
            before = self.step
            yield from self._collect_and_learn(end, plan)
            if self._estimate is not None and plan.estimates(before, self.step):
                yield from self._estimated(self._estimate())
            if (yield from self._evaluate_if_due(before, end, plan)):
                return "target"
            stop, save = self.processes.requests(self._stop, self._save_asked)
            self._save_asked = False
            if stop is not None and self.step < end:
                return stop
            if (plan.saves(before, self.step) or save) and self.step < end:
                yield from self._keep("last")
        return "steps"

    def _evaluate_if_due(self, before: int, end: int, plan: Schedule) -> Generator[Event, None, bool]:
        """The evaluation that is due since step `before`, or was stopped; whether one reached the target.

        Beside training, an evaluation is reported when the next one is due and at the end of the run, whether it was
        complete long before or is waited for: speed changes no event.
        """
        evaluator, progress = self._evaluator, self.learner.progress
        if evaluator is None or plan.evaluate_every is None:
            return False
        undecided = plan.evaluates(before, self.step) or (evaluator.pending and progress.evaluation_due)
        progress.evaluation_due |= undecided
        if evaluator.pending and (progress.evaluation_due or self.step >= end):
            found = yield from self._report(evaluator, plan)
            if found is None or plan.reached(found.mean):
                return found is not None
        if undecided:
            progress.evaluation_due = plan.affords(progress, end)
            if not progress.evaluation_due:
                yield from self._warn_once(plan.left_out(progress), "left out")
        if not progress.evaluation_due:
            return False
        if plan.evaluate_workers:
            progress.evaluation_due = False
            evaluator.begin(plan)
            if self.step < end:
                return False
        found = yield from self._report(evaluator, plan)
        return found is not None and plan.reached(found.mean)

    def _report(self, evaluator: Evaluator, plan: Schedule) -> Generator[Event, None, Evaluated | None]:
        """The evaluation that is pending, or one of the present policy; None where it was stopped."""
        progress, pending = self.learner.progress, evaluator.pending
        evaluated = evaluator.result(plan, lambda: self._stop is not None)
        if evaluated is not None:
            progress.evaluation_due &= pending  # of the next one
            progress.evaluation_cost = sum(evaluated.lengths)
            progress.evaluation_steps += progress.evaluation_cost
            yield evaluated
        yield from (Warned(self.step, note) for note in evaluator.notes())
        if evaluated is None:
            return None
        if evaluated.cut_off:
            yield from self._warn_once(_cut_off(evaluated), "cut off")
        if evaluated.best:
            yield from self._keep("best")
        return evaluated

    def _estimated(self, event: Estimated | Warned) -> Iterator[Event]:
        yield event
        for note in event.notes if isinstance(event, Estimated) else ():
            yield from self._warn_once(note, note[:40])

    def _warn_once(self, message: str, about: str) -> Iterator[Event]:
        if about not in self._warned:
            self._warned.add(about)
            yield Warned(self.step, message)

    def _collect_and_learn(self, end: int, plan: Schedule) -> Iterator[Event]:
        if self.paced:
            yield CollectionDue(self.step)  # type: ignore[misc]  # no event: see its class
        learner, collection, began = self.learner, self._collection, time.perf_counter()
        request = learner.collect_request(end - self.step)
        parts = collection.collect(request, self.step, self._upcoming(request, end, plan))
        seconds, self._whole = time.perf_counter() - began, False
        try:
            if parts:
                learner.take(*parts)
        except CallbackError as error:
            self.processes.failed(error)
            collection.put_back(parts)
            self._whole, self._saved = True, -1  # no checkpoint holds these steps
            raise
        try:
            learned = learner.learn_if_due()
        except EnvironmentFault:  # of the reward of a goal: the steps are stored, and the run can go on from there
            learner.follow_moments()
            self._whole = True
            raise
        if learner.follow_moments() or learned is not None or learner.explores_anew:
            collection.load(*learner.exploring_policy())
        self._whole = True
        yield from self._notes()
        failure = None
        if parts:
            collected_steps = tuple(part for part in parts if isinstance(part, Steps))
            metrics, failure = self._measured(collected_steps)
            episodes = tuple(end for part in parts for end in part.episodes)
            yield (collected := Collected(self.step, episodes, seconds, metrics, [collected_steps]))
            collected.release()
        if learned is not None:
            yield learned
            yield from learned.adjusted
            yield from (Warned(self.step, note) for note in self._divergence.notes(learned))
        if failure is not None:
            raise failure

    def _notes(self) -> Iterator[Event]:
        """The warnings of the rollout since the last ones."""
        for note in self._collection.notes():
            yield Warned(self.step, note)
            if isinstance(note, WorkerWarning):
                yield WorkerReplaced(self.step, note.worker, note.environments, note.reason)

    def _measured(self, steps: tuple[Steps, ...]) -> tuple[dict[str, np.ndarray], CallbackError | None]:
        """The custom metrics of collected steps, or the error of one: the events of the step come before it."""
        if self._measure is None or not steps:
            return {}, None
        try:
            return self._measure(tuple(part.read_only() for part in steps), self.step), None
        except CallbackError as error:
            return {}, error

    def _upcoming(self, request: CollectRequest, end: int, plan: Schedule) -> int:
        """Time steps that workers may collect ahead: none past the end, or past a checkpoint, which would miss them."""
        if not self._overlap:
            return 0
        if request.steps is None:
            return 1
        if request.environments is not None:
            return 0
        after = self.step + request.steps * self.learner.count
        following = self.learner.collect_request(end - after, request.steps) if after < end else CollectRequest(0)
        return following.steps or 0 if following.environments is None and not plan.saves(self.step, after) else 0

    def _keep(self, kind: str) -> Iterator[Event]:
        self._count_seconds()
        for event in self._save(kind):
            if isinstance(event, Saved) and kind == "last":
                self._saved = self.step
            yield event
        yield from self._notes()  # of workers that were asked for their state

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.learner.progress.seconds += now - self._clock
        self._clock = now


def _untrained(step: int) -> str:
    return (
        f"No gradient step was taken in {step:,} environment steps: the first update needs more. Train for longer, or "
        "lower rollout_length (on-policy) or learning_starts (off-policy)."
    )


def _cut_off(evaluated: Evaluated) -> str:
    return (
        f"{evaluated.cut_off} of {len(evaluated.lengths)} episodes of the evaluation were cut off after "
        f"{max(evaluated.lengths):,} steps, and count with what they had earned by then. If episodes do not end by "
        "themselves, limit their time: gymnasium.wrappers.TimeLimit; if they are longer, give evaluate_max_steps "
        "(--evaluate-max-steps)."
    )
