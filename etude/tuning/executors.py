"""Where segments are carried out: in this process, in worker processes, or in Ray actors."""

from __future__ import annotations

import collections
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, Self

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.interrupt import obeying_signals
from etude.envs import name_of
from etude.training.callbacks import as_list
from etude.training.description import RunDescription
from etude.training.loop import in_turns
from etude.tuning.journal import algorithm_name
from etude.tuning.segment import Ended, Noted, Report, Segment, SegmentFailed, SegmentRuns, SegmentSettings, TrialRuns
from etude.workers.channel import Job, Server, SharedMemory, WorkerChannel
from etude.workers.process import Failure, ProcessBackend, Worker
from etude.workers.ray import RayBackend
from etude.workers.supervisor import STARTING, WorkerOptions, WorkerSupervisor

PATIENCE = 3600.0  # seconds without an event of a run after which its process counts as stuck
RESTARTS = 3  # how often a segment is repeated whose process died


class Executor(Protocol):
    """Carries out segments. Results do not depend on which executor, nor on how many segments at a time."""

    def open(self, settings: SegmentSettings) -> None:
        """Be ready for the segments of a study."""

    @property
    def free(self) -> bool:
        """Whether there is a place for a segment."""

    def choose(self, waiting: Sequence[int]) -> int:
        """The one of these trials that is best begun with; where there is a place."""

    def begin(self, segment: Segment) -> None:
        """Begin with a segment of the trial that was chosen."""

    def wait(self) -> Iterator[Report]:
        """Block until there is something to report of the segments that were begun."""

    def stop(self) -> None:
        """Ask the segments that were begun to save and end."""

    def close(self) -> None:
        """End what was begun. May be called twice."""


def carried_out(
    executor: Executor, settings: SegmentSettings, following: Callable[[], Segment | None]
) -> Generator[Any, None, None]:
    """Carry out segments, and yield their reports as they come. following: the one to begin with next, wherever there
    is a place; None: none before something is reported. It ends where none is under way, and none follows."""
    under_way = set[int]()
    try:
        executor.open(settings)
        while True:
            while executor.free and (segment := following()) is not None:
                executor.begin(segment)
                under_way.add(segment.trial)
            if not under_way:
                return
            for report in executor.wait():
                if isinstance(report, Ended | SegmentFailed):
                    under_way.discard(report.trial)
                yield report
    finally:
        executor.close()


class ManyRuns(ABC):
    """The base of what makes many runs in a folder, which it locks: a study of trials, a sweep of seeds."""

    _made: RunDescription
    _executor: Executor
    _stopping = False

    @property
    def name(self) -> str:
        """The algorithm and the environment."""
        return f"{algorithm_name(self._made)}-{name_of(self._made.environment.env)}"

    @abstractmethod
    def _following(self) -> Segment | None:
        """The segment to begin with next."""

    @abstractmethod
    def _record(self, report: Any) -> None:
        """Take in what is reported of one."""

    def _carry_out(self, settings: SegmentSettings, callbacks: Any) -> None:
        """Carry all segments out, or those that are begun before `stop`; signals to this process stop it, too."""
        self._stopping, calls = False, as_list(callbacks)

        def following() -> Segment | None:
            return None if self._stopping else self._following()

        with (
            obeying_signals(self.stop, lambda: None),
            closing(carried_out(self._executor, settings, following)) as reports,
        ):
            for report in reports:
                self._record(report)
                for call in calls:
                    call(self)

    def stop(self) -> None:
        """Save the runs that are under way, and end."""
        self._stopping = True
        self._executor.stop()

    @abstractmethod
    def close(self) -> None:
        """Let other processes carry it on. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class SerialExecutor:
    """Carries out segments in this process: one at a time, or `jobs` of a study in turns. Of these, trials with
    `fused=True` that differ in seeds, and in numbers such as the learning rate, learn in one call of one program."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs: int = jobs
        self._runs: SegmentRuns | None = None
        self._begun: list[Segment] = []
        self._stop = False

    def open(self, settings: SegmentSettings) -> None:
        """See `Executor`."""
        self._runs, self._begun, self._stop = settings.runs(lambda: self._stop), [], False
        if isinstance(self._runs, TrialRuns):
            self._runs.jobs = self.jobs

    @property
    def free(self) -> bool:
        """See `Executor`."""
        return len(self._begun) < self.jobs

    def choose(self, waiting: Sequence[int]) -> int:
        """See `Executor`."""
        return waiting[0]

    def begin(self, segment: Segment) -> None:
        """See `Executor`."""
        self._begun.append(segment)

    def wait(self) -> Iterator[Report]:
        """See `Executor`."""
        assert self._runs is not None
        streams = {segment.trial: self._runs.carry_out(segment) for segment in self._begun}
        self._begun = []
        for _, report in in_turns(streams, {}):
            yield report

    def stop(self) -> None:
        """See `Executor`."""
        self._stop = True

    def close(self) -> None:
        """See `Executor`."""
        if self._runs is not None:
            self._runs.close()


class ProcessExecutor:
    """Carries out several segments at a time, each in one of `jobs` worker processes with one thread.

    A process that dies, or whose run reports nothing for `patience` seconds, is replaced, and its segment repeated from
    the last checkpoint; a trial that this happens to more than `restarts` times has failed.
    devices: one for each process, or for several in turn, in the place of the study's; None: the study's.
    """

    def __init__(
        self, jobs: int, *, devices: Sequence[str] | None = None, restarts: int = RESTARTS, patience: float = PATIENCE
    ):
        checks.whole_number("jobs", jobs, of=": trials at a time")
        if restarts < 0 or patience <= 0:
            raise ConfigError(f"restarts = {restarts}, patience = {patience}; expected 0 or more, and above 0.")
        self.jobs: int = jobs
        self.devices: tuple[str, ...] = tuple(devices or ())
        self._restarts, self._patience = restarts, patience
        self._supervisor: WorkerSupervisor | None = None
        self._workers: list[Worker] = []
        self._begun: dict[int, Segment] = {}  # by worker
        self._owner: dict[int, int] = {}  # the worker that has the run of a trial
        self._deaths: dict[int, int] = {}  # of processes, by trial
        self._stopping = False

    def open(self, settings: SegmentSettings) -> None:
        """See `Executor`."""
        self._stopping, self._owner, self._deaths = False, {}, {}
        backend = self._backend()
        named, self._workers = (settings.worker, settings.loss), []
        for i in range(self.jobs):
            own = settings.on(self.devices[i % len(self.devices)]) if self.devices else settings
            self._workers.append(backend.worker(i, [], functools.partial(TrialServer, own), named=named))
        options = WorkerOptions(deadline=self._patience, restarts=self._restarts + 1, on_error="restart")
        self._supervisor = WorkerSupervisor(self._workers, options)

    def _backend(self) -> ProcessBackend:
        """Where the workers run."""
        return ProcessBackend()

    @property
    def free(self) -> bool:
        """See `Executor`."""
        return len(self._begun) < len(self._workers)

    def choose(self, waiting: Sequence[int]) -> int:
        """See `Executor`. Trials come first whose runs an idle worker has, and then those whose runs none has."""

        def distance(trial: int) -> int:
            owner = self._owner.get(trial)
            return 1 if owner is None else 2 if owner in self._begun else 0

        return min(waiting, key=distance)

    def begin(self, segment: Segment) -> None:
        """See `Executor`."""
        idle = [worker for worker in self._workers if worker.number not in self._begun]
        owner = self._owner.get(segment.trial)
        shares = collections.Counter(self._owner.values())
        worker = min(idle, key=lambda worker: (worker.number != owner, shares[worker.number]))
        self._ask(worker, segment, new=not worker.counters[0])

    def _ask(self, worker: Worker, segment: Segment, new: bool) -> None:
        """new: whether the process has had none before: it imports what runs need first."""
        self._owner[segment.trial] = worker.number
        self._begun[worker.number] = segment
        worker.ask(segment)
        if new:
            worker.allow(max(0.0, STARTING - self._patience))

    def wait(self) -> Iterator[Report]:
        """See `Executor`."""
        assert self._supervisor is not None
        if not self._begun:
            return
        for worker, answer in self._supervisor.wait([self._workers[number] for number in self._begun]):
            if isinstance(answer, Failure):
                yield from self._replaced(worker, answer)
                continue
            worker.failures = 0
            worker.allow(0.0)
            if isinstance(answer, Ended | SegmentFailed):
                del self._begun[worker.number]
            yield answer

    def _replaced(self, worker: Worker, failure: Failure) -> Iterator[Report]:
        """A new process for a segment whose process died; the other trials of that process are loaded again."""
        assert self._supervisor is not None
        segment = self._begun.pop(worker.number)
        deaths = self._deaths[segment.trial] = self._deaths.get(segment.trial, 0) + 1
        self._owner = {trial: owner for trial, owner in self._owner.items() if owner != worker.number}
        self._supervisor.replace(worker, failure)
        yield from (Noted(segment.trial, text) for text in self._supervisor.take_warnings())
        if deaths > self._restarts:
            worker.failures = 0
            times = f"{deaths} times" if deaths > 1 else "once"
            reason = f"Its worker process failed {times}; the last time it {failure.reason}.{failure.indented}"
            yield SegmentFailed(segment.trial, reason)
        elif self._stopping:
            yield Ended(segment.trial, segment.step, "interrupted", None)
        else:
            self._ask(worker, segment, new=True)

    def stop(self) -> None:
        """See `Executor`."""
        self._stopping = True
        for worker in self._workers:
            worker.counters[1:] += 1

    def close(self) -> None:
        """See `Executor`."""
        if self._supervisor is not None:
            self._supervisor.close()
        self._begun.clear()


class RayExecutor(ProcessExecutor):
    """Carries out several segments at a time, each in one of `jobs` Ray actors with one CPU, on this machine or on the
    nodes of a cluster. The folder of the study is one that all nodes see under the same path.

    An actor that dies is replaced as a process is. Reports of a segment come when it is over, and so does the end that
    Ctrl-C asks for. address: "local" starts Ray on this machine; "auto", or the address of a head node, is a cluster
    that runs. ConfigError, when the study begins, where there is none.
    """

    def __init__(self, jobs: int, address: str = "local", *, restarts: int = RESTARTS, patience: float = PATIENCE):
        super().__init__(jobs, restarts=restarts, patience=patience)
        self.address = address

    def _backend(self) -> ProcessBackend:
        return RayBackend(self.address, self.jobs)


class TrialServer(Server):
    """Carries out segments, in a worker."""

    def __init__(self, settings: SegmentSettings, job: Job, memory: SharedMemory):
        self._counters = memory.counter_array()
        self._stops = int(self._counters[1])  # that the parent asked for before
        self._runs = settings.runs(self._alive)

    def serve(self, segment: Segment, channel: WorkerChannel) -> None:
        """Carry out a segment, and send its reports as they come."""
        for report in self._runs.carry_out(segment):
            channel.send(report)

    def _alive(self) -> bool:
        """Show the parent that this worker does not hang; whether it asked to stop."""
        self._counters[0] += 1
        return bool(self._counters[1] != self._stops)
