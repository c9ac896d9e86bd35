"""The one loop: collect, add, sample, learn, load; and now and then evaluate and save. A generator of events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps, WorkerWarning
from etude.base.errors import CallbackError, ConfigError, EnvironmentFault, EtudeError, NumericalError, ReplicaError
from etude.base.events import Collected, Estimated, Evaluated, Event, Finished, Learned, Saved, Warned, WorkerReplaced
from etude.base.spaces import Spaces
from etude.engines.divergence import Divergence
from etude.protocols import Explorer, ProcessGroup, Rollout, Weights
from etude.rollout.fragments import NobodyPlays, StepsRollout
from etude.rollout.state import check_rollout, given_up, with_ahead
from etude.training.callbacks import Metrics
from etude.training.schedule import RunProgress, Schedule, crossed


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


class Collection:
    """The collecting half of a loop: one rollout, which is made when the first step is asked for, given up where it
    fails, saved and gone on from.

    make_explorer: from the environment steps that schedules are stretched over. make_rollout: None for runs on recorded
    data alone, which collect nothing. count: environments.
    """

    def __init__(
        self,
        make_explorer: Callable[[int], Explorer],
        make_rollout: Callable[[Explorer], Rollout] | None,
        spaces: Spaces,
        count: int,
        seed: int,
    ):
        self._make_explorer, self._make_rollout, self._spaces, self._seed = make_explorer, make_rollout, spaces, seed
        self.collects: bool = make_rollout is not None  # False where a run learns from recorded data alone
        self.rollout: Rollout | None = None  # between `open` and `close`
        self._explorer: Explorer | None = None
        self._left: dict[str, Any] | None = None  # the state that the next rollout is to continue from
        self._episodes = np.zeros(count, np.int64)  # the number of each environment's open episode
        self.task: Any = None  # what environments are given when an episode begins; None: nothing was set
        self._step, self._whole_episodes = 0, False  # of the last call of `collect`
        self.stopping: Callable[[], bool] = lambda: False  # whether the loop is to end
        self.noted: list[str] = []  # what happened that a user should know, and was not told of

    def collect_with(self, make_rollout: Callable[[Explorer], Rollout]) -> None:
        """Collect with rollouts made like this from now on."""
        self.close()
        self._make_rollout, self._explorer = make_rollout, None

    def open(self, total: int, weights: Weights, version: PolicyVersion) -> None:
        """Be ready to collect in a run of `total` environment steps."""
        assert self._make_rollout is not None
        explorer = self._make_explorer(total)
        if explorer != self._explorer:  # its schedule is stretched over another number of steps
            self.close()
        if self.rollout is None:
            self._explorer = explorer
            self.rollout = self._make_rollout(explorer)
            self.rollout.load(weights, version)
            if isinstance(self.rollout, StepsRollout):
                self.rollout.stopping = self.stopping
            if self.task is not None:
                self.rollout.set_task(self.task)
            if self._left is not None:
                self.noted += self.rollout.restore(self._left)
                self._left = None

    def collect(self, request: CollectRequest, step: int, upcoming: int) -> tuple[CollectedSteps, ...]:
        """The requested steps, in parts that name their environments. Where that fails, what was being collected is
        lost and where the environments are is unknown: the next call begins new episodes. None, where the loop is to
        end and no client plays.

        step, upcoming: see `protocols.Rollout`; for whole episodes, any `upcoming` but 0 starts on the next ones.
        """
        if self.rollout is None:
            raise ConfigError(
                "The run was closed while it trains. To end it from a callback, call run.stop(); close it after that."
            )
        self._step, self._whole_episodes = step, request.steps is None
        try:
            parts: tuple[CollectedSteps, ...]
            if request.steps is None:
                parts = self.rollout.collect_episodes(step, bool(upcoming))
            else:
                begun = 0 if request.environments is None else request.environments.start  # have taken the time step
                parts = (self.rollout.collect(request.steps, step - begun, request.environments, upcoming),)
        except NobodyPlays:
            self.give_up()
            return ()
        except BaseException:
            self.give_up()
            raise
        for end in (end for part in parts for end in part.episodes):
            self._episodes[end.environment] = end.episode + 1
        self.noted += self.rollout.warnings()
        return parts

    def settle(self) -> None:
        """Take back what was learned ahead of the steps that `collect` has returned."""
        if isinstance(self.rollout, StepsRollout):
            self.rollout.settle()

    def put_back(self, parts: tuple[CollectedSteps, ...]) -> None:
        """Return what `collect` returned last from its next call again. Ends the rollout: `open` goes on from there.
        Steps that were collected ahead of the next call are lost; nothing is put back after `give_up`."""
        if self.rollout is None:
            return
        steps = tuple(part.copied() for part in parts if isinstance(part, Steps))  # workers may share their memory
        self.close()
        assert self._left is not None
        self._left = with_ahead(self._left, steps if self._whole_episodes else steps[0])

    def set_task(self, task: Any) -> None:
        """Give this task, from `task_data`, to the episodes that begin in what is collected from now on. If workers
        collect ahead, after what they have been asked for."""
        self.task = task
        if self.rollout is not None:
            self.rollout.set_task(task)

    def state(self) -> dict[str, Any] | None:
        """What `restore` goes on from; None before the first step."""
        if self.rollout is None:
            return self._left
        state = self.rollout.state()
        self.noted += self.rollout.warnings()
        return state

    def check_state(self, saved: Stored, gradients: Weights) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed. gradients: those of
        this run's workers, by name."""
        if not self.collects:
            saved.like(None)
        elif saved.value is not None:
            check_rollout(saved, len(self._episodes), self._spaces, gradients)

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.close()
        self._left, self._explorer = state, None
        if state is not None:
            numbers = [state["environments"][str(i)]["episode"] for i in range(len(state["environments"]))]
            self._episodes = np.array(numbers, np.int64)

    def close(self) -> None:
        """End workers and close environments; to collect again, `open` it. May be called twice."""
        if self.rollout is None:
            return
        try:
            self._left = self.state()
        except EtudeError:
            self.give_up()
        except BaseException:  # Ctrl-C, while a worker that hangs is waited for
            self.give_up()
            raise
        else:
            self.rollout.close()
            self.rollout = None

    def give_up(self) -> None:
        """End at once: what is being collected is lost, and no worker is waited for. The next call of `open` begins new
        episodes."""
        if self.rollout is None:
            return
        rollout, self.rollout = self.rollout, None
        self.noted += rollout.warnings()
        self._left = given_up(self._episodes, self._seed, self._step, self._spaces)
        rollout.close()


class CollectionDue(NamedTuple):
    """In the place of an event, where `Loop.paced`: the loop collects next, as these arguments of `rollout.collect`
    say. For whoever drives several loops, so that all have learned and saved before the first collects for all;
    callbacks do not get it."""

    rollout: Rollout | None
    steps: int | None
    step: int
    environments: range | None
    upcoming: int


def in_turns(streams: dict[int, Iterator[Any]], errors: dict[int, Exception]) -> Iterator[tuple[int, Any]]:
    """What several paced loops yield, by their numbers. None collects before all have learned; those that are fused
    then do so together. errors: gets those that ended a stream, which do not end the others."""
    while streams:
        due = []
        for i, stream in list(streams.items()):
            try:
                for event in stream:
                    if isinstance(event, CollectionDue):
                        due.append(event)
                        break
                    yield i, event
                else:
                    del streams[i]
            except Exception as error:  # a user's function may raise anything
                errors[i] = error
                del streams[i]
        if due and isinstance(rollout := due[0].rollout, StepsRollout):
            rollout.learn_together(due)


class Loop:
    """Takes steps with one learner and one collection.

    overlap: whether workers collect ahead while the learner learns. save: writes a checkpoint of the kind "last" or
    "best", and yields the events of it; "best" is of what was evaluated last. evaluator: such as
    `assembly.evaluator.RunEvaluator`; a loop without it takes no schedule of evaluations. metrics: the custom ones of
    collected steps. estimate: estimates the present policy from recorded episodes, or says why it cannot; a loop
    without it takes no schedule of estimates. group: the processes that stop and save together. fused: whether the
    rollout carries out whole learning phases ahead.
    """

    def __init__(
        self,
        learner: Learning,
        collection: Collection,
        overlap: bool,
        save: Callable[[str], Iterator[Event]],
        evaluator: Any = None,
        metrics: Metrics | None = None,
        estimate: Callable[[], Estimated | Warned] | None = None,
        group: ProcessGroup | None = None,
        fused: bool = False,
    ):
        self.learner: Learning = learner
        self._fused = fused
        self._collection, self._overlap = collection, overlap
        collection.stopping = lambda: self._stop is not None
        self._save, self._evaluator, self._metrics, self._estimate = save, evaluator, metrics, estimate
        self._group = group
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

    def failed(self, error: BaseException | None) -> None:
        """An error, if there is one, ends the loop: the group ends with it, unless all processes raise it, and so does
        the rollout of this process, whose state is no longer gathered."""
        in_all = error is None or getattr(error, "in_all_processes", False)
        if self._group is not None and not in_all:
            self._group.leave(f"{type(error).__name__}: {error}")
            self._collection.give_up()

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

    def steps(self, end: int, schedule: Schedule) -> Iterator[Event]:
        """Up to environment step `end`. Whenever an event is yielded, all that was collected is learned from.

        Where the environment, a custom metric or a rewriter fails, a checkpoint is written before the error is raised;
        where numbers are not finite, none is.
        """
        progress = self.learner.progress
        self._saved, self._clock, self._whole = self.step, time.perf_counter(), True
        try:
            with self.guarded():
                if self._evaluator is not None:
                    self._evaluator.open(schedule)
                if self._collection.collects:
                    self._collection.open(progress.total, *self.learner.exploring_policy())
                try:
                    reason = yield from self._until(end, schedule)
                finally:
                    self._collection.settle()
        except (CallbackError, EnvironmentFault, KeyboardInterrupt, ReplicaError):
            yield from self.save_if_new()
            raise
        except NumericalError as error:
            raise NumericalError(self._divergence.explained(error, self.step, progress.gradient_steps)) from error
        yield from (Warned(self.step, note) for note in self._divergence.last_notes())
        if reason == "steps" and not progress.gradient_steps:
            text = (
                f"No gradient step was taken in {self.step:,} environment steps: the first update needs more. Train "
                "for longer, or lower rollout_length (on-policy) or learning_starts (off-policy)."
            )
            yield from self._warn_once(text, "untrained")
        yield from self._keep("last")
        self._count_seconds()
        totals = {"episodes": progress.episodes, "gradient_steps": progress.gradient_steps}
        yield Finished(self.step, reason, progress.seconds, totals)

    def save_if_new(self) -> Iterator[Event]:
        """Write a checkpoint, unless there is one of this step, or what was collected is not yet learned from."""
        if self._whole and self.step != self._saved:
            yield from self._keep("last")

    def _until(self, end: int, schedule: Schedule) -> Generator[Event, None, str]:
        """Up to step `end`, or the reason to stop before."""
        learner, collection, group = self.learner, self._collection, self._group
        if (yield from self._evaluate_if_due(learner.progress.step, end, schedule)):  # one that was stopped
            return "target"
        if learner.progress.evaluation_due and learner.progress.step < end:
            stops = [self._stop] if group is None else group.gather("requests", self._stop)
            if (stop := next((each for each in stops if each is not None), None)) is not None:
                return stop
        while (before := learner.progress.step) < end:
            request = learner.collect_request(end - before)
            upcoming = self._upcoming(request, end, schedule) if self._overlap or self._fused else 0
            if self.paced:
                due = CollectionDue(collection.rollout, request.steps, before, request.environments, upcoming)
                yield due  # type: ignore[misc]  # no event: see its class
            parts, seconds, learned = self._collect_and_learn(request, upcoming)
            if collection.noted:
                yield from self._notes()
            failure: CallbackError | None = None
            if parts:
                episodes = tuple(end for part in parts for end in part.episodes)
                steps, metrics = tuple(part for part in parts if isinstance(part, Steps)), dict[str, np.ndarray]()
                if self._metrics is not None and self._metrics.functions and steps:
                    try:
                        metrics = self._metrics(tuple(part.read_only() for part in steps), learner.progress.step)
                    except CallbackError as error:  # the events of the step come before it
                        failure = error
                delivered = [steps]
                yield Collected(learner.progress.step, episodes, seconds, metrics, delivered)
                delivered.clear()  # a list of events does not hold all that was ever collected
                del steps, parts
            if learned is not None:
                yield learned
                yield from learned.adjusted
                yield from (Warned(learner.progress.step, note) for note in self._divergence.notes(learned))
            if failure is not None:
                raise failure
            now = learner.progress.step
            if self._estimate is not None and crossed(before, now, schedule.estimate_every):
                yield (event := self._estimate())
                for note in event.notes if isinstance(event, Estimated) else ():
                    yield from self._warn_once(note, note[:40])
            if schedule.evaluate_every is not None and (yield from self._evaluate_if_due(before, end, schedule)):
                return "target"
            asked = [(self._stop, self._save_asked)]
            if group is not None:
                asked = group.gather("requests", asked[0])
            self._save_asked = False
            for stop, _ in asked:
                if stop is not None and now < end:
                    return stop
            if now < end and (any(save for _, save in asked) or crossed(before, now, schedule.save_every)):
                yield from self._keep("last")
        return "steps"

    def _evaluate_if_due(self, before: int, end: int, schedule: Schedule) -> Generator[Event, None, bool]:
        """The evaluation that is due since step `before`, or was stopped; whether one reached the target.

        Beside training, an evaluation is reported when the next one is due and at the end of the run, whether it was
        complete long before or is waited for: speed changes no event.
        """
        evaluator, progress = self._evaluator, self.learner.progress
        if evaluator is None or schedule.evaluate_every is None:
            return False
        now_due = crossed(before, self.step, schedule.evaluate_every)
        undecided = now_due or (evaluator.pending and progress.evaluation_due)
        progress.evaluation_due |= undecided
        if evaluator.pending and (progress.evaluation_due or self.step >= end):
            found = yield from self._report(evaluator, schedule)
            if found is None or schedule.reached(found.mean):
                return found is not None
        if undecided:
            progress.evaluation_due = schedule.affords(progress, end)
            if not progress.evaluation_due:
                yield from self._warn_once(schedule.left_out(progress), "left out")
        if not progress.evaluation_due:
            return False
        if schedule.evaluate_workers:
            progress.evaluation_due = False
            evaluator.begin(schedule)
            if self.step < end:
                return False
        found = yield from self._report(evaluator, schedule)
        return found is not None and schedule.reached(found.mean)

    def _report(self, evaluator: Any, schedule: Schedule) -> Generator[Event, None, Evaluated | None]:
        """The evaluation that is pending, or one of the present policy; None where it was stopped."""
        progress, pending = self.learner.progress, evaluator.pending
        evaluated = evaluator.result(schedule, lambda: self._stop is not None)
        if evaluated is not None:
            progress.evaluation_due &= pending  # of the next one
            progress.evaluation_cost = sum(evaluated.lengths)
            progress.evaluation_steps += progress.evaluation_cost
            yield evaluated
        yield from (Warned(self.step, note) for note in evaluator.notes())
        if evaluated is None:
            return None
        if evaluated.cut_off:
            text = (
                f"{evaluated.cut_off} of {len(evaluated.lengths)} episodes of the evaluation were cut off after "
                f"{max(evaluated.lengths):,} steps, and count with what they had earned by then. If episodes do not "
                "end by themselves, limit their time: gymnasium.wrappers.TimeLimit; if they are longer, give "
                "evaluate_max_steps (--evaluate-max-steps)."
            )
            yield from self._warn_once(text, "cut off")
        if evaluated.best:
            yield from self._keep("best")
        return evaluated

    def _warn_once(self, message: str, about: str) -> Iterator[Event]:
        if about not in self._warned:
            self._warned.add(about)
            yield Warned(self.step, message)

    def _collect_and_learn(
        self, request: CollectRequest, upcoming: int
    ) -> tuple[tuple[CollectedSteps, ...], float, Learned | None]:
        """What was collected, in how many seconds, and the learning phase that was due after it."""
        learner, collection, parts = self.learner, self._collection, tuple[CollectedSteps, ...]()
        began = time.perf_counter()
        if collection.collects:
            parts = collection.collect(request, learner.progress.step, upcoming)
        else:  # the steps of a run on recorded data are gradient steps
            learner.progress.step += request.steps or 0
        seconds, self._whole = time.perf_counter() - began, False
        try:
            if parts:
                learner.take(*parts)
        except CallbackError as error:
            self.failed(error)
            collection.put_back(parts)
            self._whole, self._saved = True, -1  # no checkpoint holds these steps
            raise
        try:
            learned = learner.learn_if_due()
        except EnvironmentFault:  # of the reward of a goal: the steps are stored, and the run can go on from there
            learner.follow_moments()
            self._whole = True
            raise
        moved = learner.follow_moments() or learned is not None or learner.explores_anew
        if moved and collection.rollout is not None:
            collection.rollout.load(*learner.exploring_policy())
        self._whole = True
        return parts, seconds, learned

    def _notes(self) -> Iterator[Event]:
        """The warnings of the rollout since the last ones."""
        noted, self._collection.noted = self._collection.noted, []
        for note in noted:
            yield Warned(self.step, note)
            if isinstance(note, WorkerWarning):
                yield WorkerReplaced(self.step, note.worker, note.environments, note.reason)

    def _upcoming(self, request: CollectRequest, end: int, schedule: Schedule) -> int:
        """Time steps that workers may collect ahead: none past the end, or past a checkpoint, which would miss them."""
        if request.steps is None:
            return 1
        if request.environments is not None:
            return 0
        after = self.step + request.steps * self.learner.count
        if self._fused:  # as many phases as there are until something is due
            own = filter(None, (schedule.evaluate_every, schedule.save_every, schedule.estimate_every))
            due, one = min([end, *((self.step // every + 1) * every for every in own)]), after - self.step
            return max(0, min(-((self.step - due) // one), (end - self.step) // one) - 1) * request.steps
        following = self.learner.collect_request(end - after, request.steps) if after < end else CollectRequest(0)
        return (
            following.steps or 0
            if following.environments is None and not crossed(self.step, after, schedule.save_every)
            else 0
        )

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
