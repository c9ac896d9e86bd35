"""What runs in a worker process. It imports no framework, and of the program only the parts that it was sent."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from etude.base.errors import EtudeError
from etude.base.seeding import episode_seed
from etude.base.spaces import Spaces
from etude.envs.faults import line_of, text_of, traceback_of
from etude.protocols import Environments
from etude.rollout.bells import Ear, ring

GROUP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # that reach all processes of a program at once
STEP = "step"  # what a parent that acts says with a bell, and its answer


class Memory(NamedTuple):
    """What a worker shares with its parent: blocks of bytes without a name, which vanish with the last process."""

    counters: Any  # see Collector
    buffers: tuple[Any, ...]  # rows, written in turn, so that one is read while the other is written; or one board
    weights: Any


class Job(NamedTuple):
    """What a worker is told when it starts."""

    make_environments: Callable[[list[int]], Environments]
    columns: list[int]
    run_seed: int
    first_episodes: bool  # whether the environments are new; otherwise counters say where their episodes go on
    registered: dict[str, Any]  # environments that the program registered with Gymnasium
    make_server: Callable[[Environments, Memory], Server]


class Server(Protocol):
    """What a worker does for its parent: act and step, or only step."""

    def serve(self, request: Any, channel: Channel) -> None:
        """Do what was asked and send the answers."""


class Ready(NamedTuple):
    """The worker has made its environments."""

    spaces: Spaces
    native: bool
    reward_shape: tuple[int, ...]


class Noted(NamedTuple):
    """What a user should know of the worker's environments."""

    text: str


class Closing(NamedTuple):
    """The worker was asked to end, and closes its environments."""


class Raised(NamedTuple):
    """Something in the worker raised."""

    kind: str  # the name of the exception's class
    message: str
    traceback: str
    ours: bool  # whether it is an error that etude raised on purpose


class ParentGone(BaseException):
    """Nobody is at the other end of the pipe."""


class Channel:
    """The worker's end of the pipe to its parent."""

    def __init__(self, connection: Connection, bells: tuple[Connection, Connection], stamp: bytes):
        """bells: the one to listen to, and the one to ring. stamp: what every message begins with."""
        self._connection, self._bell, self._stamp = connection, bells[1], stamp
        self._ear = Ear(connection, bells[0])
        self.notes: Callable[[], list[str]] = list  # what there is to tell before an answer

    def send(self, message: Any) -> None:
        self._send_notes()
        self._write(message)

    def send_step(self) -> None:
        """Answer STEP."""
        self._send_notes()
        ring(self._bell)

    def _send_notes(self) -> None:
        for text in self.notes():
            self._write(Noted(text))

    def _write(self, message: Any) -> None:
        try:
            self._connection.send_bytes(self._stamp + pickle.dumps(message))
        except OSError:
            raise ParentGone from None

    def receive(self) -> Any:
        """The next message, or STEP."""
        if self._ear.listen(None):
            return STEP
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ParentGone from None


def main(
    connection: Connection,
    bells: tuple[Connection, Connection],
    stamp: bytes,
    stacks: Connection,
    memory: Memory,
    job: bytes,
) -> None:
    """Make the environments and serve until the parent says None or is gone."""
    _leave_to_the_parent()
    if sys.platform != "win32":
        os.setsid()  # a group of its own: what environments start ends with it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _write_stacks_to(stacks)
    channel = Channel(connection, bells, stamp)
    try:
        _work(channel, memory, pickle.loads(job))
    except ParentGone:
        _end_group()
    except BaseException as error:
        with contextlib.suppress(ParentGone):
            channel.send(_raised(error))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of an environment would keep the process


def _raised(error: BaseException) -> Raised:
    kind = type(error).__name__
    if isinstance(error, EtudeError):
        return Raised(kind, str(error), traceback_of(error), True)
    line = line_of(error)
    return Raised(kind, text_of(error) + (f" ({line})" if line else ""), traceback_of(error), False)


def _work(channel: Channel, memory: Memory, job: Job) -> None:
    for name, spec in job.registered.items():
        gymnasium.registry.setdefault(name, spec)
    environments = job.make_environments(job.columns)
    try:
        if not job.first_episodes:
            _skip_to(environments, counters_of(memory)[1:], job.run_seed)
        server = job.make_server(environments, memory)
        channel.notes = environments.warnings
        channel.send(Ready(environments.spaces, environments.native, environments.reward_shape))
        while (request := channel.receive()) is not None:
            server.serve(request, channel)
        channel.send(Closing())
    finally:
        environments.close()


def _skip_to(environments: Environments, episodes: np.ndarray, run_seed: int) -> None:
    """Let the next reset start these episodes, or later ones where replaying nothing ends elsewhere."""
    environments.reset()
    if environments.native:
        return
    state = environments.state()
    for saved, column, episode in zip(state, environments.columns, episodes, strict=True):
        saved["episode"], saved["seed"] = int(episode) - 1, episode_seed(run_seed, int(column), int(episode) - 1)
    environments.restore(state)
    episodes[:] = [saved["episode"] + 1 for saved in environments.state()]


def _die_with_parent() -> None:
    """A worker that is stuck in an environment does not look at its pipe."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _end_group()


def _end_group() -> None:
    """End this process at once, and what its environments started."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _leave_to_the_parent() -> None:
    """Ctrl-C, a closed terminal and a scheduler signal the whole group; the parent decides what becomes of it.

    Handlers that do nothing, and not SIG_IGN, which programs that an environment starts would inherit.
    """
    for name in GROUP_SIGNALS:
        if hasattr(signal, name) and name != "SIGUSR1":  # which writes stacks
            signal.signal(getattr(signal, name), lambda number, frame: None)


def _write_stacks_to(stacks: Connection) -> None:
    """On a crash, and when the parent asks, write where in the code every thread is."""
    faulthandler.enable(stacks.fileno())
    if sys.platform != "win32":
        os.set_blocking(stacks.fileno(), False)  # asked by others again and again, it must not wait for a reader
        faulthandler.register(signal.SIGUSR1, stacks.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in GROUP_SIGNALS])


def counters_of(memory: Memory) -> np.ndarray:
    """The counters of a `Collector`, in shared memory."""
    return np.frombuffer(memory.counters, np.int64)
