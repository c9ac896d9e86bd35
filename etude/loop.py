"""The one loop: collect, add, sample, learn, load; and now and then evaluate and save. A generator of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from etude.cadence import Cadence
from etude.data import Chunk, Steps
from etude.engines.divergence import Divergence
from etude.errors import EnvironmentFault, NumericalError
from etude.events import Collected, Evaluated, Event, Finished, Learned, Saved, Warned
from etude.progress import Progress
from etude.protocols import Weights


class Learning(Protocol):
    """The learning half of a loop, such as `Learner`."""

    progress: Progress
    count: int  # environments that are stepped in parallel

    def chunk(self, left: int, after: int = 0) -> Chunk:
        """What to collect next, of `left` environment steps at most; `after` so many time steps more."""

    def take(self, steps: Steps) -> None:
        """Store collected steps and count them."""

    def learn_if_due(self) -> Learned | None:
        """A learning phase, where one is due."""

    def follow_moments(self, steps: Steps) -> bool:
        """Take collected observations into the normaliser, after learning; whether there is one."""

    def exploring_weights(self) -> Weights:
        """What rollouts act with."""

    def trained_weights(self) -> Weights:
        """What losses train, by name."""


class Collecting(Protocol):
    """The collecting half of a loop, such as `Collection`."""

    def open(self, total: int, weights: Weights) -> None:
        """Be ready to collect in a run of `total` steps."""

    def collect(self, chunk: Chunk, step: int, upcoming: int) -> tuple[Steps, ...]:
        """The steps of a chunk, in parts that name their environments; none where nothing is collected."""

    def load(self, weights: Weights) -> None:
        """Act with these from the next collected step on."""

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""


class Loop:
    """Takes steps with one learner and one collection.

    overlap: whether workers collect ahead while the learner learns. save: writes a checkpoint of the kind "last" or
    "best", and tells of it. evaluate: plays so many episodes; a loop without it takes no cadence of evaluations.
    """

    def __init__(
        self,
        learner: Learning,
        collection: Collecting,
        overlap: bool,
        save: Callable[[str], Iterator[Event]],
        evaluate: Callable[[int], Evaluated] | None = None,
    ):
        self._learner, self._collection, self._overlap = learner, collection, overlap
        self._save, self._evaluate = save, evaluate
        self._divergence = Divergence(learner.trained_weights)
        self._whole = True  # whether all that was collected is learned from: what a checkpoint may hold
        self._saved = 0  # the step of the last checkpoint
        self._clock = 0.0
        self._stop: str | None = None

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self._learner.progress.step

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the step at hand."""
        self._stop = reason

    def steps(self, end: int, plan: Cadence) -> Iterator[Event]:
        """Up to environment step `end`. Whenever an event is yielded, all that was collected is learned from.

        Where the environment fails, a checkpoint is written before the error is raised; where numbers are not finite,
        none is.
        """
        progress = self._learner.progress
        self._stop, self._saved, self._clock, self._whole = None, self.step, time.perf_counter(), True
        try:
            self._collection.open(progress.total, self._learner.exploring_weights())
            reason = yield from self._until(end, plan)
        except (EnvironmentFault, KeyboardInterrupt):
            if self._whole and self.step != self._saved:
                yield from self._keep("last")
            raise
        except NumericalError as error:
            raise NumericalError(self._divergence.explained(error, self.step, progress.updates)) from error
        yield from (Warned(self.step, note) for note in self._divergence.last_notes())
        yield from self._keep("last")
        self._count_seconds()
        totals = {"episodes": progress.episodes, "updates": progress.updates}
        yield Finished(self.step, reason, progress.seconds, totals)

    def _until(self, end: int, plan: Cadence) -> Generator[Event, None, str]:
        """Up to step `end`, or the reason to stop before."""
        while self.step < end:
            before = self.step
            yield from self._collect_and_learn(end, plan)
            if self._evaluate is not None and plan.evaluates(before, self.step):
                evaluated = self._evaluate(plan.evaluate_episodes)
                yield evaluated
                if evaluated.best:
                    yield from self._keep("best")
                if plan.target is not None and evaluated.mean >= plan.target:
                    return "target"
            if self._stop is not None and self.step < end:
                return self._stop
            if plan.saves(before, self.step) and self.step < end:
                yield from self._keep("last")
        return "steps"

    def _collect_and_learn(self, end: int, plan: Cadence) -> list[Event]:
        learner, collection, began = self._learner, self._collection, time.perf_counter()
        chunk = learner.chunk(end - self.step)
        parts = collection.collect(chunk, self.step, self._upcoming(chunk, end, plan))
        seconds, self._whole = time.perf_counter() - began, False
        for steps in parts:
            learner.take(steps)
        learned = learner.learn_if_due()
        moved = [learner.follow_moments(steps) for steps in parts]
        if any(moved) or learned is not None:
            collection.load(learner.exploring_weights())
        self._whole = True
        warned: list[Event] = [Warned(self.step, note) for note in collection.notes()]
        episodes = tuple(end for steps in parts for end in steps.episodes)
        events = [*warned, Collected(self.step, episodes, seconds)] if parts else warned
        if learned is None:
            return events
        return [*events, learned, *(Warned(self.step, note) for note in self._divergence.notes(learned))]

    def _upcoming(self, chunk: Chunk, end: int, plan: Cadence) -> int:
        """Time steps that workers may collect ahead: none past the end, and none past a checkpoint, which would miss
        them."""
        if not self._overlap:
            return 0
        if chunk.steps is None:
            return 1
        after = self.step + chunk.steps * self._learner.count
        following = self._learner.chunk(end - after, chunk.steps) if after < end else Chunk(0)
        return following.steps or 0 if following.environments is None and not plan.saves(self.step, after) else 0

    def _keep(self, kind: str) -> Iterator[Event]:
        self._count_seconds()
        for event in self._save(kind):
            if isinstance(event, Saved) and kind == "last":
                self._saved = self.step
            yield event

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self._learner.progress.seconds += now - self._clock
        self._clock = now
