"""One worker process: started, asked, listened to and ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import struct
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from typing import Any

from etude.envs import closing
from etude.protocols import Weights
from etude.rollout.acting import weights_size
from etude.rollout.bells import Ear, Garbled, ring
from etude.rollout.worker import GROUP_SIGNALS, STEP, Closing, Memory, counters_of

_CONTEXT = get_context("spawn")
_SAFE = "PYTHONSAFEPATH"
_SLOW_TO_DIE = 2.0  # seconds between the end of a process's pipe and its own
_CUT_OFF = 10  # seconds without a byte, in the middle of a message, after which the rest of it will not come
_GARBAGE = "wrote into the pipe to this process, which is etude's"

# The number of threads has to be set before NumPy is imported, which importing anything of etude does.
_BOOT = """
import os
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", VECLIB_MAXIMUM_THREADS="1")
if not safe_path:
    del os.environ["PYTHONSAFEPATH"]  # what environments start looks where it always does
from etude.rollout.worker import main
main(*arguments)
"""


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """A process that starts here runs none of the modules in the current folder in the place of Python's own, as
    multiprocessing's `python -c` would. Afterwards it looks where this one does."""
    given = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE)
        if given is not None:
            os.environ[_SAFE] = given


@dataclass(frozen=True)
class Failure:
    """Why a worker does not answer."""

    reason: str
    detail: str = ""  # its traceback or where it was

    @property
    def indented(self) -> str:
        return "".join(f"\n    {line}" for line in self.detail.splitlines())


class Worker:
    """One process, its end of the pipe, and what it shares."""

    def __init__(self, number: int, columns: list[int], memory: Memory):
        self.number, self.columns, self.memory = number, columns, memory
        self.counters = counters_of(memory)
        self.failures = 0  # in a row
        self.generation = 0
        self.silent, self._seen = 0.0, 0  # seconds that we waited without a time step of it
        self.process: Any = None

    def __str__(self) -> str:
        first, last = self.columns[0], self.columns[-1]
        numbers = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"Worker {self.number} ({numbers})"

    def launch(self, job: bytes) -> None:
        """Start the process. The program's main module is not imported there, so that scripts need no guard and workers
        do not load what the script loads; what a job needs of it travels by value."""
        self.connection, theirs = _CONTEXT.Pipe()
        self._stamp = secrets.token_bytes(16)  # what is read without it is no message of ours
        _limit_reading(self.connection)
        self._stacks, write_stacks = _CONTEXT.Pipe(duplex=False)
        their_bell, self._bell = _CONTEXT.Pipe(duplex=False)
        self._my_bell, ring_mine = _CONTEXT.Pipe(duplex=False)
        self._ear = Ear(self.connection, self._my_bell)
        arguments = (theirs, (their_bell, ring_mine), self._stamp, write_stacks, self.memory, job)
        self.process = _CONTEXT.Process(
            target=exec,
            args=(_BOOT, {"arguments": arguments, "safe_path": bool(os.environ.get(_SAFE))}),
            name=f"etude-{self.number}",
        )
        main_module = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            with _without_current_folder(), _signals_wait():
                self.process.start()
        finally:
            sys.modules["__main__"] = main_module
        for end in (theirs, write_stacks, their_bell, ring_mine):
            end.close()

    def ask(self, message: Any) -> None:
        """Send a message; that nobody is there to read it shows when the answer is awaited."""
        self.allow(0.0)
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def ask_step(self) -> None:
        """It is the worker's turn to step; see `ask`."""
        self.silent = 0.0
        ring(self._bell)

    def hear(self, seconds: float) -> Any:
        """STEP once it has been taken, or the next message or Failure; None if there is none of these so long."""
        try:
            rung = self._ear.listen(seconds)
        except Garbled:
            return Failure(_GARBAGE)
        if rung is None and self.process.exitcode is None:
            return None
        return STEP if rung else self.answer()

    def answer(self) -> Any:
        """The next message, or the Failure of a process that has died, or of which something else came. Only when there
        is something to read."""
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

    def allow(self, seconds: float) -> None:
        """Start to wait, with so much time more than usual."""
        self.silent, self._seen = -seconds, int(self.counters[0])

    def waited(self, seconds: float) -> float:
        """Note that we waited for it; returns how long it has not taken a time step."""
        taken = int(self.counters[0])
        self.silent = 0.0 if taken != self._seen else self.silent + seconds
        self._seen = taken
        return self.silent

    def hung(self) -> Failure:
        """The failure of a process that hangs, with where in the code it is, if it can still tell."""
        self._read_stacks()  # that others asked for
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGUSR1)
            self._stacks.poll(0.5)
        return Failure(f"took no time step for {self.silent:.1f} s", self._read_stacks())

    def _read_stacks(self) -> str:
        text = b""
        with contextlib.suppress(OSError):
            while self._stacks.poll(0.05) and (part := os.read(self._stacks.fileno(), 65536)):
                text += part
        return text.decode(errors="replace")

    def dismiss(self) -> None:
        """Ask the process to end."""
        if self.process is not None:
            self.ask(None)

    def end(self, grace: float) -> None:
        """Make sure that the process has ended, and what its environments started: by force after `grace` seconds, or
        more where it is closing its environments. May be called twice."""
        if self.process is None:
            return
        self.process.join(grace)
        if self.process.exitcode is None and grace and self._closes():
            self.process.join(closing.SECONDS + grace)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.close()
        self.process = None
        for end in (self.connection, self._stacks, self._bell, self._my_bell):
            end.close()

    def _closes(self) -> bool:
        """Whether it has said that it is closing its environments."""
        while self.connection.poll():
            answer = self.answer()
            if isinstance(answer, Closing | Failure):
                return isinstance(answer, Closing)
        return False


def _limit_reading(connection: Any) -> None:
    """Let a message that stops in the middle raise BlockingIOError instead of blocking for ever."""
    if sys.platform != "win32":
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _CUT_OFF, 0))


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """A process that starts here inherits that signals to the group wait, until it has said what it does with them."""
    if sys.platform == "win32":
        yield
        return
    # It starts with the first process, keeps what it inherits, and leaves SIGINT and SIGTERM unblocked behind it.
    with _blocked():
        resource_tracker.ensure_running()
    with _blocked():
        yield


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in GROUP_SIGNALS])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def new_buffer(size: int) -> Any:
    """Bytes that processes share; they have no name, and vanish with the last process."""
    return _CONTEXT.RawArray("b", size)


def share_memory(environments: int, buffers: tuple[Any, ...], weights: Weights) -> Memory:
    """Memory for one worker: these buffers, and room for weights like these."""
    return Memory(_CONTEXT.RawArray("q", 1 + environments), buffers, new_buffer(weights_size(weights)))


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            hint = " (the system does this when memory runs out)" if -code == signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{hint}"
    return "closed the pipe to this process" if code is None else f"exited with code {code}"
