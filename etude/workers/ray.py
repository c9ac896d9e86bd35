"""Workers in Ray actors, on this machine or on the nodes of a cluster. They run the job of the pool's processes; rows
come back with replies, and each version of the weights goes through the object store once."""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import ConfigError
from etude.base.stacks import answer_requests, memory_of, stacks_of
from etude.envs import faults
from etude.workers.channel import BufferRead, Ready, Server, SharedMemory, WithTask, WorkerChannel
from etude.workers.process import Failure, ProcessBackend, Worker
from etude.workers.worker import made, raised

LOCAL = "local"  # the address of a Ray that is started on this machine, and ends with this process
_UNPLACED = 20.0  # seconds that actors may wait for a CPU
_UNSEEN = 1.0  # seconds after which a cluster has said what it consists of
_LOOK = 5.0  # seconds without an answer, after which the actor's node is asked for its progress
_COUNTERS = "etude-counters"  # memory that `_progress_of` finds
_ANSWERS = 5.0  # seconds that a node may take to send the stacks of an actor that hangs


def connect(address: str, workers: int) -> Any:
    """The module `ray`, connected: to the cluster that this process uses already, or to the one at this address.
    ConfigError where there is none, or no Ray."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f'ray = {address!r} needs Ray: pip install "etude[ray]".') from error
    if ray.is_initialized():
        return ray
    local: dict[str, Any] = {"num_cpus": max(workers, os.cpu_count() or 1), "include_dashboard": False}
    given = {"address": LOCAL, **local} if address == LOCAL else {"address": address}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **given)
    except Exception as error:  # of many classes
        raise ConfigError(
            f"ray = {address!r}: there is no Ray cluster that answers ({type(error).__name__}: {error}). Give the "
            f"address of its head node (host:6379), auto on a node of the cluster, or {LOCAL} to start one here. One "
            "that asks for a token needs RAY_AUTH_MODE=token and the token in ~/.ray/auth_token here, too."
        ) from error
    if handler not in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own, which replaced it, ends the process without a checkpoint
    return ray


class RayWorker(Worker):
    """One Ray actor, and the calls of it that have not returned."""

    def __init__(self, backend: RayBackend, *arguments: Any):
        super().__init__(*arguments)
        self._backend, self._ray = backend, backend.ray
        self._actor: Any = None
        self._placed: tuple[str, int] | None = None  # node and process
        self._calls: deque[Any] = deque()
        self._messages: deque[_Message] = deque()  # that came with one reply
        self._sent_task: Any = None
        self._sent_weights: Any = None
        self._look: Any = None  # at the progress, under way

    @staticmethod
    def ready(workers: list[Any], seconds: float) -> list[Any]:
        """Those with an answer that came with another, or else whose calls have returned."""
        if here := [worker for worker in workers if worker._messages]:
            return here
        ray, calls = workers[0]._ray, {worker._calls[0]: worker for worker in workers}
        found, _ = ray.wait(list(calls), timeout=seconds)
        if found and len(calls) > 1:
            found, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [calls[call] for call in found]

    @property
    def running(self) -> bool:
        """Whether it was started and has not been ended."""
        return self._actor is not None

    @property
    def process_id(self) -> int | None:
        """The process of the actor on its node; None before it has one."""
        if self._placed is None and self._ray.wait([self._place], timeout=0)[0]:
            try:
                self._placed = self._ray.get(self._place)
            except self._ray.exceptions.RayError:
                return None
        return None if self._placed is None else self._placed[1]

    def launch(self, job: bytes) -> None:
        """Start an actor. job: with the present task."""
        self._sent_task, self._sent_weights, self._placed, self._look = self.task, None, None, None
        self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(WorkerActor).remote()
        self._place = self._actor.place.remote()
        memory = self.memory
        sizes = tuple(len(buffer) for buffer in memory.buffers)
        weights = len(memory.weights or b"")
        self._calls.append(self._actor.start.remote(job, self.counters.copy(), sizes, weights))

    def ask(self, request: Any, buffers: Iterable[int] = ()) -> None:
        """Call the actor, with the task and the weights if they are new, and copies of these buffers."""
        self.allow(0.0)
        if isinstance(request, BufferRead):  # it wrote into copies
            return
        if request is None:
            self._calls.append(self._actor.close.remote())
            return
        if self.task is not self._sent_task:
            request, self._sent_task = WithTask(self.task, request), self.task
        published = self._backend.published
        weights = None if published is self._sent_weights else published
        self._sent_weights = published
        written = {i: np.frombuffer(self.memory.buffers[i], np.uint8).copy() for i in buffers}
        self._calls.append(self._actor.serve.remote(request, weights, written))

    def receive(self, seconds: float) -> Any:
        """The next message or Failure; None if neither comes in time."""
        return self.answer() if self.ready([self], seconds) else None

    def answer(self) -> Any:
        """The next message, once the buffers hold what is read with it; or the Failure of an actor that has died."""
        if not self._messages:
            call = self._calls.popleft()
            try:
                reply = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                return Failure(f"was lost by Ray ({type(error).__name__})", str(error))
            self.counters[:] = reply.counters
            self._messages.extend(reply.messages)
        message = self._messages.popleft()
        for i, content in message.written.items():
            self.memory.buffers[i][: len(content)] = content.data
        return message.answer

    def waited(self, seconds: float) -> float:
        """Count so many seconds of waiting, and ask the node whether the actor takes time steps."""
        silent = super().waited(seconds)
        if self._look is None and silent > _LOOK:
            self._look = self._looked(stacks=False)
        elif self._look is not None and self._ray.wait([self._look], timeout=0)[0]:
            self._seen_steps(self._look)
            self._look = None
        if self.process_id is None and self.generation and silent > _UNPLACED:
            raise _unplaced(self._ray, str(self), 1, silent)
        return silent

    def hung(self) -> Failure:
        """The failure of an actor that hangs, with the stacks of its threads if its node sends them."""
        if self.process_id is None:
            raise _unplaced(self._ray, str(self), 1, self.silent)
        look = self._looked(stacks=True)
        found = self._seen_steps(look) if look is not None and self._ray.wait([look], timeout=_ANSWERS)[0] else ""
        return Failure(f"took no time step for {self.silent:.1f} s", found)

    def end(self, grace: float) -> None:
        """Wait for it to close its environments, where it was asked to, and kill it. May be called twice."""
        if self._actor is None:
            return
        if grace and self._ray.is_initialized():
            idle = len(self._calls) == 1  # it is closing, and not stuck before that
            self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=grace + faults.SECONDS * idle)
        if self._ray.is_initialized():
            self._ray.kill(self._actor)
        self._actor = None
        self._calls.clear()
        self._messages.clear()

    def _looked(self, stacks: bool) -> Any:
        if self.process_id is None or self._placed is None:
            return None
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self._placed[0], soft=False)
        task = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(_progress_of)
        return task.remote(self._placed[1], stacks)

    def _seen_steps(self, look: Any) -> str:
        """Take over the time steps that a node reports; returns the stacks that came with them."""
        try:
            found = self._ray.get(look)
        except self._ray.exceptions.RayError:  # the node is gone: the call shows it
            return ""
        if found is None:
            return ""
        self.counters[0] = found[0]
        return found[1]


class RayBackend(ProcessBackend):
    """Workers are Ray actors with one CPU each. address: see `connect`."""

    deadline: float = 24.0  # with the time that a node may take to send stacks, an actor that hangs ends within 30 s

    def __init__(self, address: str, workers: int):
        self.ray: Any = connect(address, workers)
        began = time.monotonic()  # actors would wait for free CPUs without a word
        while self.ray.available_resources().get("CPU", 0.0) < workers:
            large, waited = self.ray.cluster_resources().get("CPU", 0.0) >= workers, time.monotonic() - began
            if waited > (_UNPLACED if large else _UNSEEN):
                raise _unplaced(self.ray, f"{workers} workers", workers, waited)
            time.sleep(0.1)
        self.published: Any = None  # the present weights in the object store

    def _counters(self, count: int) -> Any:
        return bytearray(8 * count)  # the parent's copy

    def _worker(self, *arguments: Any) -> Worker:
        return RayWorker(self, *arguments)

    def new_buffer(self, size: int) -> Any:
        """Private bytes; requests and replies carry copies."""
        return bytearray(size)

    def publish(self, weights: Any) -> None:
        """Put the weights into the object store, from where each node fetches them once."""
        self.published = self.ray.put(np.frombuffer(weights, np.uint8))


def _unplaced(ray: Any, who: str, needed: int, seconds: float) -> ConfigError:
    total, free = (each.get("CPU", 0.0) for each in (ray.cluster_resources(), ray.available_resources()))
    return ConfigError(
        f"Ray has no place for {who}: of the cluster's {total:g} CPUs {free:g} are free, expected {needed} or more "
        f"(waited {seconds:.0f} s). Take fewer workers, or add nodes; `ray status` shows who has them."
    )


# -- in the actor ------------------------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """An answer, and what the buffers hold that are read with it."""

    answer: Any
    written: dict[int, np.ndarray]


class _Reply(NamedTuple):
    """What one call of an actor returns."""

    messages: list[_Message]
    counters: np.ndarray


class _ReplyChannel(WorkerChannel):
    """Keeps answers until the call at hand returns them, with copies of the buffers: these are free at once."""

    memory: SharedMemory

    def __init__(self) -> None:
        self._messages: list[_Message] = []

    def receive(self) -> BufferRead:
        """The parent reads copies."""
        return BufferRead()

    def take(self) -> list[_Message]:
        """The answers since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def _write(self, message: Any, written: dict[int, int]) -> None:
        copies = {i: np.frombuffer(self.memory.buffers[i], np.uint8, size).copy() for i, size in written.items()}
        self._messages.append(_Message(message, copies))


class WorkerActor:
    """Serves the requests of one pool. Exceptions are answers, as those of worker processes are."""

    def __init__(self) -> None:
        from threadpoolctl import threadpool_limits  # not at the top: worker processes import this file, too

        threadpool_limits(1)
        answer_requests()
        self._channel = _ReplyChannel()
        self._server: Server | None = None

    def place(self) -> tuple[str, int]:
        """The node and the process of this actor."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def start(self, job: bytes, counters: np.ndarray, buffers: tuple[int, ...], weights: int) -> _Reply:
        """Make the server of a job. counters: as the parent has them. buffers, weights: their sizes in bytes."""
        seen = _visible_memory(counters.nbytes)
        np.frombuffer(seen, np.int64)[:] = counters
        memory = SharedMemory(seen, tuple(bytearray(size) for size in buffers), bytearray(weights))
        self._channel.memory = memory
        try:
            self._server = made(pickle.loads(job), memory, self._channel)
            self._channel.send(Ready(self._server.ready))
        except BaseException as error:
            self._channel.send(raised(error))
        return self._reply()

    def serve(self, request: Any, weights: np.ndarray | None, written: dict[int, np.ndarray]) -> _Reply:
        """Carry out a request. weights: new ones; None: as before. written: buffers that are read with it."""
        memory = self._channel.memory
        if weights is not None:
            memory.weights[:] = weights.data
        for i, content in written.items():
            memory.buffers[i][:] = content.data
        try:
            assert self._server is not None
            self._server.serve(self._channel.opened(request), self._channel)
        except BaseException as error:
            self._channel.send(raised(error))
        return self._reply()

    def close(self) -> None:
        """Close the server."""
        if self._server is not None:
            self._server.close()

    def _reply(self) -> _Reply:
        return _Reply(self._channel.take(), self._channel.memory.counter_array().copy())


def _progress_of(process: int, stacks: bool) -> tuple[int, str] | None:
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
