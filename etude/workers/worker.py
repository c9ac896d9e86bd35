"""What runs in a worker. It imports no framework, and of the program only the parts that it was sent."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import threading
from multiprocessing import current_process, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium
import numpy as np

if sys.platform == "linux":
    import fcntl

from etude.base.errors import EtudeError
from etude.base.stacks import answer_requests
from etude.envs.faults import line_of, text_of, traceback_of
from etude.workers.channel import (
    GROUP_SIGNALS,
    Closing,
    Job,
    ParentGone,
    PipeChannel,
    Raised,
    Ready,
    Server,
    SharedMemory,
    WorkerChannel,
    close_ends,
)


def main(
    connection: Connection,
    notifications: tuple[Connection, Connection],
    stamp: bytes,
    stacks: Connection,
    memory: SharedMemory,
) -> None:
    """Make the server of the job that the parent sends first, and serve until it says None or is gone."""
    _leave_to_the_parent()
    if sys.platform != "win32":
        os.setsid()  # a group of its own: what environments start ends with it
    _die_with_parent()
    faulthandler.enable(stacks.fileno())  # on a crash, and when the parent asks, it writes where every thread is
    answer_requests()
    if sys.platform != "win32":
        os.set_blocking(stacks.fileno(), False)  # asked by others again and again, it must not wait for a reader
        faulthandler.register(signal.SIGUSR1, stacks.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in GROUP_SIGNALS])
    channel = PipeChannel(connection, notifications, stamp)
    try:
        job = pickle.loads(connection.recv_bytes())
        with contextlib.closing(made(job, memory, channel)) as server:
            channel.send(Ready(server.ready))
            while (request := channel.receive()) is not None:
                server.serve(request, channel)
            channel.send(Closing())
    except ParentGone:
        _end_group()
    except BaseException as error:
        with contextlib.suppress(ParentGone):
            channel.send(raised(error))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of an environment would keep the process


def fork_all(parent: Connection, arguments: list[tuple[Any, ...]], modules: list[str]) -> None:
    """Import these modules, fork a worker for each of the arguments of `main`, send its number, and wait to be ended.
    Returns in the workers, once they have ended."""
    for module in modules:
        with contextlib.suppress(Exception):  # a worker that needs it says why
            importlib.import_module(module)
    for number, own in enumerate(arguments):
        process = os.fork()
        if process == 0:
            parent.close()
            for others in arguments[number + 1 :]:
                close_ends(others)
            np.random.seed()  # noqa: NPY002  (random does it by itself; environments may draw from either)
            current_process().name = f"etude-{number}"
            main(*own)
            return
        parent.send(process)
        close_ends(own)
    with contextlib.suppress(EOFError, OSError):
        parent.recv()
    os._exit(0)


def made(job: Job, memory: SharedMemory, channel: WorkerChannel) -> Server:
    """The server of a job, whose notes the channel sends from now on."""
    vars(sys.modules["__main__"]).update(job.of_main)
    for name, spec in job.registered.items():
        gymnasium.registry.setdefault(name, spec)
    server = channel.server = job.make_server(job, memory)
    return server


def raised(error: BaseException) -> Raised:
    """The message of an exception."""
    kind = type(error).__name__
    if isinstance(error, EtudeError):
        return Raised(kind, str(error), traceback_of(error), True)
    line = line_of(error)
    return Raised(kind, text_of(error) + (f" ({line})" if line else ""), traceback_of(error), False)


def _die_with_parent() -> None:
    """End with the parent, also within an environment. The kernel of Linux ends the group where the pipe to the parent
    closes; elsewhere the thread does, unless code that hangs keeps Python's lock."""
    parent = parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        pipe = parent.sentinel
        with contextlib.suppress(OSError):  # the end of its own has an owner of its own, which forks would share
            pipe = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)

    def wait_for_its_end() -> None:  # which may have come before
        wait([parent.sentinel])
        _end_group()

    threading.Thread(target=wait_for_its_end, daemon=True).start()


def _end_group() -> None:
    """End this process at once, and what its environments started."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _leave_to_the_parent() -> None:
    """Ctrl-C, a closed terminal and a scheduler signal the whole group; the parent decides what becomes of it.

    Handlers that do nothing, and not SIG_IGN, which programs that an environment starts would inherit.
    """
    owner = os.getpid()

    def obey(number: int, frame: Any) -> None:
        if os.getpid() != owner and number != signal.SIGINT:  # a child of an environment, which ends it
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for name in GROUP_SIGNALS:
        if hasattr(signal, name) and name != "SIGUSR1":  # which writes stacks
            signal.signal(getattr(signal, name), obey)
