"""A worker as its parent has it, wherever it runs: asked, listened to, and ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from etude.rollout.pool.channel import MakeServer, SharedMemory


@dataclass(frozen=True)
class Failure:
    """Why a worker does not answer."""

    reason: str
    detail: str = ""  # its traceback, or the stacks of its threads

    @property
    def indented(self) -> str:
        return "".join(f"\n    {line}" for line in self.detail.splitlines())


class Worker(ABC):
    """One worker, and this end of what it shares with its parent.

    columns: its environment indices. make_server: what it does for its parent; travels by cloudpickle. kind, loss: in
        messages, what it is called, and what is lost when it is replaced.
    """

    def __init__(
        self,
        number: int,
        columns: list[int],
        memory: SharedMemory,
        make_server: MakeServer,
        kind: str = "Worker",
        loss: str = "its open episodes dropped",
    ):
        self.number: int = number
        self.columns: list[int] = columns
        self.memory: SharedMemory = memory
        self.make_server: MakeServer = make_server
        self.loss: str = loss
        self._kind = kind
        self.counters: Any = memory.counter_array()
        self.failures = 0  # since something that it collects was whole
        self.generation = 0
        self.silent: float = 0.0  # seconds that we waited without a time step of it
        self._seen = 0
        self.task: Any = None  # of the episodes that begin from the next request on; None: none was set

    def __str__(self) -> str:
        if not self.columns:
            return f"{self._kind} {self.number}"
        first, last = self.columns[0], self.columns[-1]
        numbers = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"{self._kind} {self.number} ({numbers})"

    @abstractmethod
    def launch(self, job: bytes) -> None:
        """Start it. job: with the present task."""

    @staticmethod
    def launch_all(workers: Sequence[Any], job_of: Callable[[Any], bytes]) -> None:
        """Start these workers, all of one class. job_of: the job of each."""
        for worker in workers:
            worker.launch(job_of(worker))

    @abstractmethod
    def ask(self, request: Any, buffers: Iterable[int] = ()) -> None:
        """Send a request, and the task if it is new. If nobody is there to read it, waiting for the answer shows
        that. buffers: those that the worker reads with it."""

    @abstractmethod
    def receive(self, seconds: float) -> Any:
        """The next message or Failure; None if neither comes in time."""

    @abstractmethod
    def answer(self) -> Any:
        """The next message, or the Failure of a worker that has died or sent something else. Only of one that
        `ready` has returned."""

    @staticmethod
    @abstractmethod
    def ready(workers: list[Any], seconds: float) -> list[Any]:
        """Those of these workers, all of one class, that have answered or died; none if none does in time."""

    def allow(self, seconds: float) -> None:
        """Start to wait, with so much time more than usual."""
        self.silent, self._seen = -seconds, int(self.counters[0])

    def waited(self, seconds: float) -> float:
        """Count so many seconds of waiting; returns how long the worker has not taken a time step."""
        taken = int(self.counters[0])
        self.silent = 0.0 if taken != self._seen else self.silent + seconds
        self._seen = taken
        return self.silent

    @abstractmethod
    def hung(self) -> Failure:
        """The failure of a worker that hangs, with the stacks of its threads if it can still write them."""

    @abstractmethod
    def end(self, grace: float) -> None:
        """Make sure that it has ended: by force after `grace` seconds, or more if it is closing its environments. May
        be called twice."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it was started and has not been ended."""


class WorkerBackend(Protocol):
    """Where the workers of a pool run."""

    worker: type[Worker]
    deadline: float  # seconds without a time step after which a worker counts as stuck, unless the options say others

    def new_buffer(self, size: int) -> Any:
        """Bytes that a worker and its parent write and read."""

    def memory(self, environments: int, buffers: tuple[Any, ...], weights: Any = None) -> SharedMemory:
        """The memory of a worker of so many environments. weights: a buffer that all workers read."""

    def publish(self, weights: Any) -> None:
        """Workers read what was written to their buffer of weights with their next request."""
