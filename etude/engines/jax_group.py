"""Processes of jax.distributed."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from etude.base.errors import ReplicaError
from etude.engines.heartbeat import Heartbeat
from etude.engines.process_group import MessageGroup, lost

HEARTBEAT = 20  # seconds after which a process that is gone ends the others
CONNECTING = 120  # seconds after which one that does not come does; JAX aborts them
SMALLEST = 1024  # bytes of a message, which are filled up to a power of two: every size is compiled


class JaxGroup(MessageGroup):
    """All processes of jax.distributed. See `protocols.ProcessGroup`.

    JAX waits for a collective without a limit, and cannot be interrupted. So collectives are called in a thread, and
    this one watches the heartbeats of the others.
    """

    def __init__(self) -> None:
        self._heartbeat = Heartbeat(_Store(), jax.process_index(), jax.process_count())
        self._heartbeat.start()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), daemon=True, name="collectives").start()
        weakref.finalize(self, self._heartbeat.stop)
        weakref.finalize(self, self._calls.put, None)
        super().__init__(_Collectives(self.call, self._heartbeat))

    def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns that all processes call. ReplicaError where one of them ended, has left or hangs."""
        call = _Call(function, arguments)
        self._calls.put(call)
        try:
            self._heartbeat.wait(what, call)
        except RuntimeError as error:
            if not call.is_completed():
                atexit.register(_abandon, call)
            raise error if isinstance(error, ReplicaError) else lost(error) from error
        return call.result()


class _Call:
    """A call in the thread of collectives. See `heartbeat.Work`."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self._context = contextvars.copy_context()
        self._function, self._arguments = function, arguments
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = jax.block_until_ready(self._context.run(self._function, *self._arguments))
        except BaseException as error:  # is raised where the call was made
            self._error = error
        self._done.set()

    def wait(self, timeout: timedelta) -> None:
        if not self._done.wait(timeout.total_seconds()):
            raise RuntimeError("it is not completed")
        if isinstance(self._error, jax.errors.JaxRuntimeError):
            raise self._error

    def is_completed(self) -> bool:
        return self._done.is_set()

    def result(self) -> Any:
        """What the function returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


def _serve(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # its arguments are as large as the weights


def _abandon(call: _Call) -> None:
    """Leave a collective before Python ends, which would abort this process while a thread is in one."""
    if jax.process_index():  # the coordinator stays for the others
        with contextlib.suppress(RuntimeError):
            jax.distributed.shutdown()
    with contextlib.suppress(RuntimeError):
        call.wait(timedelta(seconds=HEARTBEAT))


def outlive(others: Sequence[int]) -> None:
    """Wait until these processes have left, or are lost: JAX aborts those whose coordinator ends before them."""
    client = distributed.global_state.client
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.get_live_nodes([0, *others])


class _Store:
    """See `heartbeat.Store`: what the coordinator of jax.distributed keeps."""

    def add(self, key: str, amount: int) -> int:
        return _client().key_value_increment(key, amount)

    def set(self, key: str, text: str) -> None:
        _client().key_value_set(key, text, allow_overwrite=True)

    def get(self, key: str) -> bytes:
        return _client().blocking_key_value_get(key, 1000 * HEARTBEAT).encode()


def _client() -> Any:
    client = distributed.global_state.client  # has no public name
    if client is None:
        raise RuntimeError("jax.distributed was shut down")
    return client


class _Collectives:
    """See `process_group.Transport`."""

    def __init__(self, call: Callable[..., Any], heartbeat: Heartbeat):
        self.rank, self.size, self._call = jax.process_index(), jax.process_count(), call
        self.leave = heartbeat.leave

    def exchange(self, what: str, message: bytes) -> list[bytes]:
        sizes = self._gathered(what, np.array([len(message)], np.int32)).reshape(-1)
        room = max(SMALLEST, 1 << (int(sizes.max()) - 1).bit_length())
        own = np.zeros(room, np.uint8)
        own[: len(message)] = np.frombuffer(message, np.uint8)
        return [each[:size].tobytes() for each, size in zip(self._gathered(what, own), sizes.tolist(), strict=True)]

    def _gathered(self, what: str, array: np.ndarray) -> Any:
        return self._call(what, multihost_utils.process_allgather, array)
