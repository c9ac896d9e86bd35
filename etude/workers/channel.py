"""What a worker and its parent share: the job, messages, memory, and a pipe for notifications."""

from __future__ import annotations

import os
import pickle
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from etude.protocols import Weights

CONTEXT = get_context("spawn")
GROUP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # that reach all processes of a program at once
STEP = "step"  # what a notification stands for: take a step, and it has been taken
_NOTIFICATION = b"\xa7"


class Job(NamedTuple):
    """What a worker does, sent when it starts."""

    make_server: MakeServer
    columns: list[int]  # the indices of its environments, if it has some
    generation: int  # 0: the first; otherwise it takes the place of another, and the shared counters are the other's
    registered: dict[str, Any]  # environments that the program registered with Gymnasium
    task: Any = None  # see `Server.set_task`; None: none was set
    of_main: dict[str, Any] = {}  # what it names of the program's main module, which workers do not import


class Server(ABC):
    """What a worker does for its parent. Made in the worker, from its job and the memory that it shares."""

    ready: Any = None  # what the parent gets to know of it once it is made

    @abstractmethod
    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answers."""

    def notes(self) -> list[str]:
        """Warnings since the last call."""
        return []

    def set_task(self, task: Any) -> None:  # noqa: B027
        """Take over a task, which comes with a request and before it."""

    def close(self) -> None:  # noqa: B027
        """Free what it holds."""


class Ready(NamedTuple):
    """The worker has made its server. about: what that says of itself."""

    about: Any


class BufferRead(NamedTuple):
    """The parent has read a buffer, which may be written again. Every other request implies it for all buffers."""


class WithTask(NamedTuple):
    """A request, and the task that comes with it."""

    task: Any
    request: Any


class Note(NamedTuple):
    """A warning of the worker."""

    text: str


class Closing(NamedTuple):
    """The worker was asked to end, and closes its server."""


class Raised(NamedTuple):
    """An exception in the worker."""

    kind: str  # the name of its class
    message: str
    traceback: str
    ours: bool  # whether it is an `EtudeError`


class SharedMemory(NamedTuple):
    """Blocks of bytes without a name, which vanish with the last process that has them."""

    counters: Any  # one that rises while the worker is alive, and some of its server's: see `counter_array`
    buffers: tuple[Any, ...] = ()
    weights: Any = None  # a buffer that all workers read

    def counter_array(self) -> np.ndarray:
        """[1 + n] int64: the time steps that a worker has taken, or whatever shows that it is not stuck; and n of the
        server's own, to which the parent adds 1 when it replaces the worker."""
        return np.frombuffer(self.counters, np.int64)


MakeServer = Callable[[Job, SharedMemory], Server]


def close_ends(arguments: tuple[Any, ...]) -> None:
    """Close this process's copies of the connections among the arguments of a worker."""
    connection, notifications, _, stacks, _ = arguments
    for end in (connection, *notifications, stacks):
        end.close()


ALIGNMENT = 64  # bytes: a cache line


def aligned(size: int) -> int:
    """The bytes that an array of this size takes in a buffer with others."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Carver:
    """Allocates arrays in a buffer, one after the other."""

    def __init__(self, buffer: Any):
        self._buffer = buffer
        self.offset: int = 0  # bytes that are taken

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        array = np.ndarray(shape, dtype, self._buffer, self.offset)
        self.offset += aligned(array.nbytes)
        return array


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
            ready = wait([self._connection, self._receiver], seconds)
            if self._connection in ready or not ready:
                return False if ready else None
            return _checked(self._receiver.recv_bytes())
        ready = self._poll.poll(None if seconds is None else 1000 * seconds)
        for descriptor, event in ready:
            if descriptor == self._number and event & select.POLLIN:
                return _checked(os.read(self._number, 1))
        return False if ready else None

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

    server: Server | None = None  # whose notes precede answers, and which takes over tasks

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
            assert self.server is not None
            self.server.set_task(request.task)
            return request.request
        return request

    def _send_notes(self) -> bool:
        """Whether there were any."""
        notes = [] if self.server is None else self.server.notes()
        for text in notes:
            self._write(Note(text), {})
        return bool(notes)

    @abstractmethod
    def _write(self, message: Any, written: dict[int, int]) -> None: ...


class PipeChannel(WorkerChannel):
    """To a parent on the same machine, which shares the buffers. stamp: what every message begins with."""

    def __init__(self, connection: Connection, notifications: tuple[Connection, Connection], stamp: bytes):
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
