"""What runs in a Ray actor: the job of a pool's worker, whose memory travels with requests and answers."""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any, NamedTuple

import numpy as np

from etude.base.stacks import answer_requests, memory_of, stacks_of
from etude.rollout.pool.acting import BufferRead
from etude.rollout.pool.channel import Job, SharedMemory, WorkerChannel
from etude.rollout.pool.worker import RunningJob, raised

_COUNTERS = "etude-counters"  # memory that `progress_of` finds


class Message(NamedTuple):
    """An answer, and what the buffers hold that are read with it."""

    answer: Any
    written: dict[int, np.ndarray]


class Reply(NamedTuple):
    """What one call of an actor returns."""

    messages: list[Message]
    counters: np.ndarray


class Start(NamedTuple):
    """What an actor starts from. counters, as the parent has them; sizes of the buffers and the weights, in bytes."""

    job: bytes
    counters: np.ndarray
    buffers: tuple[int, ...]
    weights: int


class ReplyChannel(WorkerChannel):
    """Keeps answers until the call at hand returns them, with copies of the buffers: these are free at once."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: SharedMemory
        self._messages: list[Message] = []

    def receive(self) -> BufferRead:
        """The parent reads copies."""
        return BufferRead()

    def take(self) -> list[Message]:
        """The answers since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def _write(self, message: Any, written: dict[int, int]) -> None:
        copies = {i: np.frombuffer(self.memory.buffers[i], np.uint8, size).copy() for i, size in written.items()}
        self._messages.append(Message(message, copies))


class WorkerActor:
    """Serves the requests of one pool. Exceptions are answers, as those of worker processes are."""

    def __init__(self) -> None:
        from threadpoolctl import threadpool_limits  # not at the top: worker processes import this file, too

        threadpool_limits(1)
        answer_requests()
        self._channel = ReplyChannel()
        self._running: RunningJob | None = None

    def place(self) -> tuple[str, int]:
        """The node and the process of this actor."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def start(self, start: Start) -> Reply:
        """Make the environments."""
        counters = _visible_memory(start.counters.nbytes)
        np.frombuffer(counters, np.int64)[:] = start.counters
        buffers = tuple(bytearray(size) for size in start.buffers)
        memory = SharedMemory(counters, buffers, bytearray(start.weights))
        self._channel.memory = memory
        try:
            job: Job = pickle.loads(start.job)
            self._running = RunningJob(job, memory, self._channel)
        except BaseException as error:
            self._channel.send(raised(error))
        return self._reply()

    def serve(self, request: Any, weights: np.ndarray | None, written: dict[int, np.ndarray]) -> Reply:
        """Carry out a request. weights: new ones; None: as before. written: buffers that are read with it."""
        memory = self._channel.memory
        if weights is not None:
            memory.weights[:] = weights.data
        for i, content in written.items():
            memory.buffers[i][:] = content.data
        try:
            assert self._running is not None
            self._running.serve(self._channel.opened(request))
        except BaseException as error:
            self._channel.send(raised(error))
        return self._reply()

    def close(self) -> None:
        """Close the environments."""
        if self._running is not None:
            self._running.close()

    def _reply(self) -> Reply:
        return Reply(self._channel.take(), self._channel.memory.counter_array().copy())


def progress_of(process: int, stacks: bool) -> tuple[int, str] | None:
    """(the time steps that an actor on this machine has taken, the stacks of its threads where they are asked for);
    None where that cannot be seen: the process has ended, or this is not Linux."""
    memory = memory_of(process, _COUNTERS)
    if memory is None:
        return None
    steps = int(np.frombuffer(memory.read_bytes(), np.int64)[0])
    return steps, (stacks_of(process) or "") if stacks else ""


def _visible_memory(size: int) -> Any:
    """Memory that other processes of this machine can read while this one is busy; private where there is none."""
    if not hasattr(os, "memfd_create"):
        return bytearray(size)
    number = os.memfd_create(_COUNTERS)
    os.ftruncate(number, size)
    return mmap.mmap(number, size)
