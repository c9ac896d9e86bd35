"""Supervises workers: asks them, waits with deadlines, and replaces those that die or hang."""

from __future__ import annotations

import atexit
import os
import pickletools
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from etude.base import errors
from etude.base.data import WorkerWarning
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.forks import check_own_workers, dumps, when_dropped
from etude.envs.faults import TracebackText, text_of
from etude.workers.channel import Job, Note, Raised, Ready
from etude.workers.process import Failure, ProcessBackend, Worker

_MAIN = "__main__:"
STARTING = 60.0  # seconds that a worker may take to import and to make its server, at least
_GRACE = 1.0  # seconds that a worker may take to close its server
_LONGEST_PAUSE = 10.0  # seconds between two attempts to start a worker


@dataclass(frozen=True)
class WorkerOptions:
    """Where workers run, and how they are treated."""

    deadline: float | None = None  # seconds without a time step after which a worker counts as stuck; None: backend's
    restarts: int = 5  # how often one worker may fail before something that it does is whole
    on_error: str = "raise"  # an exception in a worker: "raise" it here, or "restart" the worker
    buffer: int = 4 << 20  # bytes of each worker's buffers
    backend: ProcessBackend = field(default_factory=ProcessBackend)

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "restart"):
            raise ConfigError(f'on_error is "raise" or "restart", not {self.on_error!r}.')
        if (self.deadline is not None and self.deadline <= 0) or self.restarts < 0 or self.buffer <= 0:
            raise ConfigError(f"deadline and buffer must be positive and restarts not negative; given {self}.")

    @property
    def patience(self) -> float:
        """Seconds without a time step after which a worker counts as stuck."""
        return self.backend.deadline if self.deadline is None else self.deadline


class WorkerSupervisor:
    """Starts workers, all of one class; asks them, waits, and replaces those that die or hang.

    ready: what the server of the first one says of itself.
    """

    def __init__(self, workers: Sequence[Any], options: WorkerOptions):
        self.workers: list[Any] = list(workers)
        self._options = options
        self.warnings: list[str] = []
        self._noted: set[str] = set()  # notes of servers, each of which is passed on once
        self._closed = False
        reference, owner = weakref.ref(self), os.getpid()

        def close() -> None:
            alive = reference()
            if alive is not None and os.getpid() == owner:  # a fork of this process has no workers
                alive.close()

        self._at_exit = close
        atexit.register(self._at_exit)
        self._finalizer, self._process = when_dropped(self, _end_all, self.workers), os.getpid()
        try:
            self.workers[0].launch_all(self.workers, self._job)
            self.ready: Any = [self._await_ready(worker) for worker in self.workers][0].about
        except BaseException:
            self.close()
            raise

    def wait(self, busy: Iterable[Worker], stopped: Callable[[], bool] = lambda: False) -> Iterator[tuple[Worker, Any]]:
        """Block until some of the busy workers have answered, died or hung: (worker, message or Failure) of these. None
        of them where `stopped`, which is asked several times a second, says so."""
        self._check_open()
        busy = list(busy)
        answered = False
        while not answered and not stopped():
            ready = busy[0].ready(busy, self._tick)
            for worker in ready:
                answer = self._checked(worker, worker.answer())
                if answer is not None:
                    answered = True
                    yield worker, answer
            stuck = [] if ready else [each for each in busy if each.waited(self._tick) > self._options.patience]
            if stuck:
                yield from ((worker, worker.hung()) for worker in stuck)
                return

    def receive(self, worker: Worker) -> Any:
        """The next answer of one worker, or the Failure of one that died or hung. Cheaper than `wait`."""
        self._check_open()
        while (answer := self._checked(worker, received := worker.receive(self._tick))) is None:
            if received is None and worker.waited(self._tick) > self._options.patience:
                return worker.hung()
        return answer

    def ask_all(self, requests: dict[int, Any], again: bool = True) -> list[Any]:
        """The answers of some workers, in their order. One that fails is replaced; the new one is asked `again`, or the
        Failure is its answer."""
        answers: dict[int, Any] = {}
        for number, request in requests.items():
            self.workers[number].ask(request)
        while waiting := [self.workers[number] for number in requests if number not in answers]:
            for worker, answer in self.wait(waiting):
                if isinstance(answer, Failure):
                    self.replace(worker, answer)
                    if again:
                        worker.ask(requests[worker.number])
                        continue
                answers[worker.number] = answer
        return [answers[number] for number in requests]

    def set_task(self, task: Any) -> None:
        """Send this task to every worker with its next request, and with the job of one that is replaced; None: no
        task. Workers must be at rest, or be asked later for what the task is meant for."""
        for worker in self.workers:
            worker.task = task

    def take_warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why; notes of their environments."""
        warnings, self.warnings = self.warnings, []
        return warnings

    def replace(self, worker: Worker, failure: Failure) -> Ready:
        """Start a worker in the place of one that failed. Raises EnvironmentFault when it fails again and again."""
        while True:
            worker.end(0.0)
            worker.failures += 1
            if worker.failures > self._options.restarts:
                self.close()
                raise EnvironmentFault(
                    f"{worker} failed {worker.failures} times in a row; the last time it {failure.reason}. Look at "
                    f"what its environments do: without workers, this process steps them.{failure.indented}"
                )
            text = f"{worker} {failure.reason}; replaced, {worker.loss}.{failure.indented}"
            self.warnings.append(WorkerWarning.of(text, worker.number, tuple(worker.columns), failure.reason))
            if worker.failures > 1:
                time.sleep(min(_LONGEST_PAUSE, 0.1 * 2 ** (worker.failures - 2)))
            worker.generation += 1
            worker.counters[1:] += 1
            worker.launch(self._job(worker))
            answer = self._first_answer(worker)
            if isinstance(answer, Ready):
                return answer
            failure = answer

    def close(self) -> None:
        """End all workers. May be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._finalizer()

    @property
    def _tick(self) -> float:
        return min(0.25, self._options.patience / 20)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("This pool is closed; make a new one.")
        check_own_workers(self._process)

    def _checked(self, worker: Worker, message: Any) -> Any:
        """An answer; None for a note. Raises, or returns as a Failure, what the worker raised."""
        if isinstance(message, Note):
            if message.text not in self._noted:
                self._noted.add(message.text)
                self.warnings.append(message.text)
            return None
        if not isinstance(message, Raised):
            return message
        reason = f"raised {message.kind}: {message.message}"
        if self._options.on_error == "restart":
            return Failure(reason, message.traceback)
        self.close()
        kind = getattr(errors, message.kind, EnvironmentFault) if message.ours else EnvironmentFault
        text = message.message if message.ours else f"{worker} {reason}"
        error = kind.__new__(kind)  # some of our errors make their own text
        Exception.__init__(error, text)
        raise error from TracebackText(message.traceback)

    def _job(self, worker: Worker) -> bytes:
        registered = {
            name: spec
            for name, spec in gymnasium.registry.items()
            if not str(spec.entry_point or spec.vector_entry_point).startswith("gymnasium.")
        }
        job = Job(worker.make_server, worker.columns, worker.generation, registered, worker.task)
        try:
            pickled = dumps(job)
            of_main = _named_of_main(pickled)
            return dumps(job._replace(of_main=of_main)) if of_main else pickled
        except Exception as error:  # whatever the user's objects raise
            raise ConfigError(
                f"The environment, or a part of the agent, cannot be sent to a worker process: {text_of(error)}. Name "
                "it ('module:callable'), or make it by a function that holds plain data alone."
            ) from error

    def _first_answer(self, worker: Worker) -> Ready | Failure:
        worker.allow(max(0.0, STARTING - self._options.patience))
        return next(self.wait([worker]))[1]

    def _await_ready(self, worker: Worker) -> Ready:
        answer = self._first_answer(worker)
        return self.replace(worker, answer) if isinstance(answer, Failure) else answer


class Supervised:
    """The base of what has supervised workers: passes their warnings on, and ends them with itself."""

    _supervisor: WorkerSupervisor

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why; notes of their environments."""
        return self._supervisor.take_warnings()

    def _ask_each(self, request: Callable[[Worker], Any]) -> list[Any]:
        """The answers of all workers, in their order."""
        return self._supervisor.ask_all({worker.number: request(worker) for worker in self._supervisor.workers})

    def set_task(self, task: Any) -> None:
        """Send this task with the next request to each worker."""
        self._supervisor.set_task(task)

    def close(self) -> None:
        """End the workers, and free the memory that they share. May be called twice."""
        self._supervisor.close()


def split_environments(environments: int | range, workers: int) -> list[list[int]]:
    """The environment indices, split into runs of as equal length as possible. environments: how many there are, or the
    indices of those of this process."""
    indices = np.arange(environments) if isinstance(environments, int) else np.array(environments)
    if not 1 <= workers <= len(indices):
        raise ConfigError(
            f"{workers} workers cannot share {len(indices)} environments; expected from 1 to {len(indices)} workers."
        )
    return [list(map(int, part)) for part in np.array_split(indices, workers)]


def _named_of_main(job: bytes) -> dict[str, Any]:
    """What texts such as "__main__:Mine" in a pickle stand for: entry points of environments, and wrappers."""
    if _MAIN.encode() not in job:
        return {}
    texts = {text for _, text, _ in pickletools.genops(job) if isinstance(text, str) and text.startswith(_MAIN)}
    main, names = vars(sys.modules["__main__"]), {text.removeprefix(_MAIN) for text in texts}
    return {name: main[name] for name in sorted(names) if name in main}


def _end_all(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.running:
            worker.ask(None)
    until = time.monotonic() + _GRACE
    for worker in workers:
        worker.end(max(0.01, until - time.monotonic()))
