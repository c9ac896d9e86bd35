"""A worker as its parent has it, in a process of this machine: started, asked, listened to and ended.

Importing what a worker needs takes longer than anything else that it does before its first time step. So the workers
of a pool are forks of one process that has imported it once; it holds no thread, framework or module of the user. Linux
gives the children of a process that ends to an ancestor which asks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import pickletools
import secrets
import signal
import socket
import struct
import sys
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

from etude.base.errors import ConfigError
from etude.base.forks import check_own_workers
from etude.envs import faults
from etude.workers.channel import (
    CONTEXT,
    GROUP_SIGNALS,
    STEP,
    Closing,
    Garbled,
    MakeServer,
    NotificationPipe,
    SharedMemory,
    WithTask,
    close_ends,
)


@dataclass(frozen=True)
class Failure:
    """Why a worker does not answer."""

    reason: str
    detail: str = ""  # its traceback, or the stacks of its threads

    @property
    def indented(self) -> str:
        return "".join(f"\n    {line}" for line in self.detail.splitlines())


@dataclass(eq=False)
class Worker(ABC):
    """One worker, and this end of what it shares with its parent.

    columns: the indices of its environments, if it has some. make_server: what it does for its parent; travels by
        cloudpickle. kind, loss: in messages, what it is called, and what is lost when it is replaced.
    """

    number: int
    columns: list[int]
    memory: SharedMemory
    make_server: MakeServer
    kind: str = "Worker"
    loss: str = "its open episodes dropped"

    def __post_init__(self) -> None:
        self.counters: Any = self.memory.counter_array()
        self.failures = 0  # since something that it collects was whole
        self.generation = 0
        self.silent: float = 0.0  # seconds that we waited without a time step of it
        self._seen = 0
        self.task: Any = None  # sent with the next request, if it is new; None: none was set

    def __str__(self) -> str:
        if not self.columns:
            return f"{self.kind} {self.number}"
        first, last = self.columns[0], self.columns[-1]
        numbers = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"{self.kind} {self.number} ({numbers})"

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


_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)
_one_at_a_time = threading.Lock()  # what adopting changes is of the whole process


class _ForkedProcess:
    """What pools need of a `multiprocessing.Process`. forking: the process that forked it; the pipe that shows workers
    the end of this process is that one's, and closes when it is collected."""

    def __init__(self, number: int, forking: Any):
        self.pid: int = number
        self._forking = forking
        self.sentinel: int = os.pidfd_open(number)
        self._exitcode: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Its exit code, or less the signal that ended it; None while it runs."""
        with contextlib.suppress(ChildProcessError):
            if self._exitcode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self._exitcode = os.waitstatus_to_exitcode(ended[1])
        return self._exitcode

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""
        wait([self.sentinel], seconds)

    def kill(self) -> None:
        """End it by force."""
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Take its exit code from the system, which then forgets it. Only once it has ended."""
        self.exitcode  # noqa: B018
        os.close(self.sentinel)


def can_adopt() -> bool:
    """Whether this system has what it takes, and the program does not ask for "spawn"."""
    if sys.platform != "linux" or multiprocessing.get_start_method(allow_none=True) == "spawn":
        return False
    with contextlib.suppress(OSError):
        os.close(os.pidfd_open(os.getpid()))
        return _is_subreaper() is not None and os.path.exists("/proc/self/fd")
    return False


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Children of a process that ends here become children of this one."""
    with _one_at_a_time:
        before = _is_subreaper()
        _prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(_SET_CHILD_SUBREAPER, int(bool(before)))


def modules_named_by(job: bytes) -> list[str]:
    """The modules of etude that are named in a pickle."""
    names = {name for _, name, _ in pickletools.genops(job) if isinstance(name, str) and name.startswith("etude.")}
    return sorted(names & sys.modules.keys())


def _is_subreaper() -> bool | None:
    found = ctypes.c_int()
    return bool(found.value) if _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(found)) else None


def _prctl(option: int, argument: Any) -> bool:
    return ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0


_SAFE = "PYTHONSAFEPATH"
_CUT_OFF = 10  # seconds without a byte, in the middle of a message, after which the rest of it will not come
_STARTING = 60.0  # seconds that the process which forks workers may take to import, and for each
_SLOW_TO_DIE = 2.0  # seconds between the end of a process's connection and its own
_GARBAGE = "wrote into the pipe to this process, which is etude's"

# The number of threads has to be set before NumPy is imported, which importing anything of etude does.
_BOOT = """
import os
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")
if not safe_path:
    del os.environ["PYTHONSAFEPATH"]  # what environments start looks where it always does
from etude.workers import worker
getattr(worker, function)(*arguments)
"""


class ProcessWorker(Worker):
    """One process, this end of its connection, and the memory that it shares."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._sent_task: Any = None  # the last one that the process was sent
        self.process: Any = None
        self._started_by = os.getpid()

    @staticmethod
    def ready(workers: list[Any], seconds: float) -> list[Any]:
        """Those that have sent something or died, in the order of their numbers."""
        handles = {handle: worker for worker in workers for handle in (worker.connection, worker.process.sentinel)}
        found = {handles[handle].number: handles[handle] for handle in wait(list(handles), seconds)}
        return [found[number] for number in sorted(found)]

    @property
    def running(self) -> bool:
        """Whether it was started and has not been ended."""
        return self.process is not None

    def launch(self, job: bytes) -> None:
        """Start the process. job: with the present task."""
        arguments = self._arguments()
        self.process = _start_process(f"etude-{self.number}", "main", arguments)
        close_ends(arguments)
        self._send_job(job)

    @staticmethod
    def launch_all(workers: Sequence[Any], job_of: Callable[[Any], bytes]) -> None:
        """Start processes that one forks which has imported what they need; those that it does not, one by one."""
        if len(workers) > 1 and can_adopt():
            _fork_all(workers, modules_named_by(job_of(workers[0])))
        for worker in workers:
            if worker.running:
                worker._send_job(job_of(worker))
            else:
                worker.launch(job_of(worker))

    def _send_job(self, job: bytes) -> None:
        """If nobody is there to read it, waiting for the answer shows that."""
        self._sent_task = self.task
        with contextlib.suppress(OSError):
            self.connection.send_bytes(job)

    def _arguments(self) -> tuple[Any, ...]:
        """Those of `worker.main`, connected to this end."""
        self.connection, theirs = CONTEXT.Pipe()
        self._stamp = secrets.token_bytes(16)  # what is read without it is no message of ours
        # Let a message that stops in the middle raise BlockingIOError instead of blocking for ever.
        if sys.platform != "win32":
            with socket.socket(fileno=os.dup(self.connection.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _CUT_OFF, 0))
        self._stacks, write_stacks = CONTEXT.Pipe(duplex=False)
        their_receiver, sender = CONTEXT.Pipe(duplex=False)
        receiver, their_sender = CONTEXT.Pipe(duplex=False)
        self._notifications = NotificationPipe(self.connection, receiver, sender)
        return theirs, (their_receiver, their_sender), self._stamp, write_stacks, self.memory

    def ask(self, request: Any, buffers: Iterable[int] = ()) -> None:
        """Send a request, and the task if it is new. If nobody is there to read it, waiting for the answer shows
        that. The worker sees the buffers as they are. ConfigError in a fork of the process that started it."""
        check_own_workers(self._started_by)
        self.allow(0.0)
        if self.task is not self._sent_task:
            request, self._sent_task = WithTask(self.task, request), self.task
        with contextlib.suppress(OSError):
            self.connection.send(request)

    def ask_step(self) -> None:
        """Notify the worker that it is its turn to step."""
        check_own_workers(self._started_by)
        if self.task is not self._sent_task:
            self.ask(STEP)
            return
        self.silent: float = 0.0
        self._notifications.notify()

    def receive(self, seconds: float) -> Any:
        """STEP once it has been taken, or the next message or Failure; None if neither comes in time."""
        try:
            notified = self._notifications.wait(seconds)
        except Garbled:
            return Failure(_GARBAGE)
        if notified is None and self.process.exitcode is None:
            return None
        return STEP if notified else self.answer()

    def answer(self) -> Any:
        """The next message, or the Failure of a process that has died or sent something else. Only when there is
        something to read."""
        try:
            if self.process.exitcode is not None and not self.connection.poll():
                raise EOFError  # which does not show while a process that it forked has the other end, too
            message = self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            self.process.join(_SLOW_TO_DIE)
            return Failure(_describe_exit(self.process.exitcode), self._read_stacks())
        except (OSError, OverflowError, MemoryError):  # a length that is none, or the rest did not come
            return Failure(_GARBAGE)
        if not message.startswith(self._stamp):
            return Failure(_GARBAGE)
        return pickle.loads(message[len(self._stamp) :])

    def hung(self) -> Failure:
        """The failure of a process that hangs, with the stacks of its threads if it can still write them."""
        self._read_stacks()  # that others asked for
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGUSR1)
            self._stacks.poll(0.5)
        return Failure(f"took no time step for {self.silent:.1f} s", self._read_stacks())

    def end(self, grace: float) -> None:
        """Make sure that the process has ended, and what its environments started: by force after `grace` seconds, or
        more if it is closing its environments. May be called twice."""
        if self.process is None:
            return
        self.process.join(grace)
        if self.process.exitcode is None and grace and self._closes():
            self.process.join(faults.SECONDS + grace)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.close()
        self.process = None
        self.connection.close()
        self._stacks.close()
        self._notifications.close()

    def _closes(self) -> bool:
        """Whether it has sent that it is closing its environments."""
        while self.connection.poll():
            answer = self.answer()
            if isinstance(answer, Closing | Failure):
                return isinstance(answer, Closing)
        return False

    def _read_stacks(self) -> str:
        text = b""
        with contextlib.suppress(OSError):
            while self._stacks.poll(0.05) and (part := os.read(self._stacks.fileno(), 65536)):
                text += part
        return text.decode(errors="replace")


class ProcessBackend:
    """Where workers run: in processes of this machine, which share memory with their parent. Other places derive from
    it."""

    deadline: float = 60.0  # seconds without a time step after which a worker counts as stuck, unless options say

    def worker(
        self,
        number: int,
        columns: list[int],
        make_server: MakeServer,
        buffers: tuple[Any, ...] = (),
        weights: Any = None,
        named: tuple[str, ...] = (),
    ) -> Worker:
        """A worker, and the memory that it shares. weights: a buffer that all workers read. named: the last arguments
        of `Worker`."""
        memory = SharedMemory(self._counters(1 + max(1, len(columns))), buffers, weights)
        return self._worker(number, columns, memory, make_server, *named)

    def _counters(self, count: int) -> Any:
        return _shared("q", count)

    def _worker(self, *arguments: Any) -> Worker:
        return ProcessWorker(*arguments)

    def new_buffer(self, size: int) -> Any:
        """Bytes that a worker and its parent write and read."""
        return _shared("b", size)

    def publish(self, weights: Any) -> None:
        """Workers read what was written to their buffer of weights with their next request. They share it: nothing to
        do."""


def _shared(kind: str, count: int) -> Any:
    try:
        return CONTEXT.RawArray(kind, count)
    except OSError as error:
        raise ConfigError(
            f"The memory that workers share cannot be made ({error}). Let this user write to /dev/shm, or, where it is"
            " full, to the folder in TMPDIR; or train without workers: workers=0 (--workers 0)."
        ) from error


def _fork_all(workers: Sequence[ProcessWorker], modules: list[str]) -> None:
    """Start a process that forks these, has their numbers told, and ends it: they are then this process's own children.
    A worker that it could not fork is left as it was."""
    arguments = [worker._arguments() for worker in workers]
    ours, theirs = CONTEXT.Pipe()
    forking = _start_process("etude-forking", "fork_all", (theirs, arguments, modules))
    for ends in arguments:
        close_ends(ends)
    theirs.close()
    try:
        with contextlib.suppress(EOFError, OSError):
            for worker in workers:
                if not ours.poll(_STARTING):
                    break
                worker.process = _ForkedProcess(ours.recv(), forking)
    finally:
        with _adopting():
            forking.kill()
            forking.join()
        ours.close()


def _start_process(name: str, function: str, arguments: tuple[Any, ...]) -> Any:
    """Start a process that calls this function of `worker`.

    The program's main module is not imported there, so that scripts need no guard and workers do not load what the
    script loads; what a job needs of it travels by value.
    """
    safe = os.environ.get(_SAFE)
    given = {"function": function, "arguments": arguments, "safe_path": bool(safe)}
    process = CONTEXT.Process(target=exec, args=(_BOOT, given), name=name)
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    # It runs none of the modules in the current folder in the place of Python's own, as multiprocessing's `python -c`
    # would. Afterwards it looks where this one does.
    os.environ[_SAFE] = "1"
    try:
        if sys.platform != "win32":
            # It starts with the first process, keeps what it inherits, and leaves SIGINT and SIGTERM unblocked.
            with _signals_wait():
                resource_tracker.ensure_running()
        with _signals_wait():
            process.start()
    finally:
        sys.modules["__main__"] = main_module
        os.environ.pop(_SAFE)
        if safe is not None:
            os.environ[_SAFE] = safe
    return process


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """A process that starts here inherits that signals to the group wait, until it has set its handlers."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in GROUP_SIGNALS])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            hint = " (the system does this when memory runs out)" if -code == signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{hint}"
    return "closed the pipe to this process" if code is None else f"exited with code {code}"
