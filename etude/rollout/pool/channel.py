"""What a worker and its parent share: messages, memory, and a pipe for notifications."""

from __future__ import annotations

import os
import pickle
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.spaces import Spaces
from etude.protocols import Environments, Weights
from etude.rollout.rows import ALIGNMENT, Carver, aligned

CONTEXT = get_context("spawn")
GROUP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # that reach all processes of a program at once
STEP = "step"  # what a notification stands for: take a step, and it has been taken

_NOTIFICATION = b"\xa7"


class Job(NamedTuple):
    """What a worker does, sent when it starts."""

    make_environments: Callable[[list[int]], Environments]
    columns: list[int]  # the indices of its environments
    run_seed: int
    generation: int  # 0 for new environments; otherwise the shared counters hold the numbers of their next episodes
    registered: dict[str, Any]  # environments that the program registered with Gymnasium
    make_server: MakeServer
    task: Any = None  # of the first episodes; None: none was set
    of_main: dict[str, Any] = {}  # what it names of the program's main module, which workers do not import


class Server(Protocol):
    """What a worker does for its parent: act and step, step only, or compute gradients."""

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answers."""


class Ready(NamedTuple):
    """The worker has made its environments."""

    spaces: Spaces
    native: bool
    reward_shape: tuple[int, ...]
    info_names: tuple[str, ...]


class WithTask(NamedTuple):
    """A request, and the task of the episodes that begin from now on."""

    task: Any
    request: Any


class SaveState(NamedTuple):
    """Send the state of the environments."""


class RestoreState(NamedTuple):
    """Continue from this state, and send the environments that could not."""

    state: list[dict[str, Any]]


class Note(NamedTuple):
    """A warning of the worker's environments."""

    text: str


class Closing(NamedTuple):
    """The worker was asked to end, and closes its environments."""


class Raised(NamedTuple):
    """An exception in the worker."""

    kind: str  # the name of its class
    message: str
    traceback: str
    ours: bool  # whether it is an `EtudeError`


class SharedMemory(NamedTuple):
    """Blocks of bytes without a name, which vanish with the last process that has them."""

    counters: Any  # see `Collector`
    buffers: tuple[Any, ...]
    weights: Any = None

    def counter_array(self) -> np.ndarray:
        """The counters of a `Collector`, int64."""
        return np.frombuffer(self.counters, np.int64)


MakeServer = Callable[[Environments, SharedMemory, int], Server]  # from environments, memory and generation


def share_memory(environments: int, buffers: tuple[Any, ...], weights: Any = None) -> SharedMemory:
    """The memory of a worker of so many environments."""
    return SharedMemory(CONTEXT.RawArray("q", 1 + environments), buffers, weights)


def new_buffer(size: int) -> Any:
    """Bytes that processes share."""
    return CONTEXT.RawArray("b", size)


def close_ends(arguments: tuple[Any, ...]) -> None:
    """Close this process's copies of the connections among the arguments of a worker."""
    connection, notifications, _, stacks, _ = arguments
    for end in (connection, *notifications, stacks):
        end.close()


def weights_in(buffer: Any, like: Weights) -> Weights:
    """Arrays like these, by name, in a buffer. The same arguments give the same layout in every process."""
    carve, values = Carver(buffer), {name: np.asarray(like[name]) for name in sorted(like)}
    return {name: carve(value.shape, value.dtype) for name, value in values.items()}


def weights_size(like: Weights) -> int:
    """The size of the buffer that `weights_in` needs."""
    return sum(aligned(np.asarray(value).nbytes) for value in like.values()) + ALIGNMENT


class Garbled(Exception):
    """Something else than a notification came through its pipe."""


class NotificationPipe:
    """Notifies another process that it is its turn, beside the connection for messages.

    One byte through a pipe of its own costs a fifth of an empty message. What was written to shared memory before is
    visible to the process that is notified.
    """

    def __init__(self, connection: Connection, receiver: Connection, sender: Connection):
        self._connection, self._receiver, self._sender = connection, receiver, sender
        self._number = receiver.fileno()
        if sys.platform != "win32":  # which has no poll
            self._poll = select.poll()
            self._poll.register(connection, select.POLLIN)
            self._poll.register(receiver, select.POLLIN)

    def notify(self) -> None:
        """Notify the other process. If it has ended, waiting for its answer shows that."""
        try:
            if sys.platform == "win32":
                self._sender.send_bytes(_NOTIFICATION)
            else:
                os.write(self._sender.fileno(), _NOTIFICATION)
        except OSError:
            return

    def wait(self, seconds: float | None) -> bool | None:
        """True: notified. False: there is a message on the connection, or its other end is closed. None: neither came
        in time. Raises Garbled."""
        if sys.platform == "win32":
            return self._wait_on_windows(seconds)
        ready = self._poll.poll(None if seconds is None else 1000 * seconds)
        for descriptor, event in ready:
            if descriptor == self._number and event & select.POLLIN:
                return _checked(os.read(self._number, 1))
        return False if ready else None

    def _wait_on_windows(self, seconds: float | None) -> bool | None:
        ready = wait([self._connection, self._receiver], seconds)
        if self._connection in ready or not ready:
            return False if ready else None
        return _checked(self._receiver.recv_bytes())

    def close(self) -> None:
        """Close this process's ends."""
        self._receiver.close()
        self._sender.close()


def _checked(received: bytes) -> bool:
    if received != _NOTIFICATION:
        raise Garbled
    return True


class ParentGone(BaseException):
    """Nobody is at the other end of the connection."""


class WorkerChannel(ABC):
    """A worker's end of what connects it to its parent."""

    def __init__(self) -> None:
        self.notes: Callable[[], list[str]] = list  # warnings to send before an answer
        self.set_task: Callable[[Any], None]  # called with a task before the request that it came with

    def send(self, message: Any, written: dict[int, int] | None = None) -> None:
        """Send an answer. written: the buffers that the parent reads with it, and how many bytes of each."""
        self._send_notes()
        self._write(message, written or {})

    def send_step(self) -> None:
        """Answer STEP."""
        self.send(STEP)

    @abstractmethod
    def receive(self) -> Any:
        """The next request, or STEP. A task that comes with it is set."""

    def opened(self, request: Any) -> Any:
        """The request itself. A task that comes with it is set."""
        if isinstance(request, WithTask):
            self.set_task(request.task)
            return request.request
        return request

    def _send_notes(self) -> bool:
        """Whether there were any."""
        notes = self.notes()
        for text in notes:
            self._write(Note(text), {})
        return bool(notes)

    @abstractmethod
    def _write(self, message: Any, written: dict[int, int]) -> None: ...


class PipeChannel(WorkerChannel):
    """To a parent on the same machine, which shares the buffers. stamp: what every message begins with."""

    def __init__(self, connection: Connection, notifications: tuple[Connection, Connection], stamp: bytes):
        super().__init__()
        self._connection, self._stamp = connection, stamp
        self._notifications = NotificationPipe(connection, *notifications)

    def send_step(self) -> None:
        """Answer STEP."""
        if self._send_notes():
            self._write(STEP, {})  # a notification through its own pipe may be read before the notes
        else:
            self._notifications.notify()

    def receive(self) -> Any:
        """The next request, or STEP. A task that comes with it is set."""
        if self._notifications.wait(None):
            return STEP
        try:
            request = self._connection.recv()
        except (EOFError, OSError):
            raise ParentGone from None
        return self.opened(request)

    def _write(self, message: Any, written: dict[int, int]) -> None:
        try:
            self._connection.send_bytes(self._stamp + pickle.dumps(message))
        except OSError:
            raise ParentGone from None
