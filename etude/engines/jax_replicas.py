"""Agents on JAX, trained on several devices, of one process or of several that find each other by JAX's service."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from etude.agent import Agent
from etude.base import trees
from etude.base.cores import Busy
from etude.base.data import power_of_two
from etude.base.errors import ConfigError, ReplicaError
from etude.base.spaces import Spaces
from etude.engines.functional import FunctionalEngine, Program
from etude.engines.jax import JaxBackend
from etude.engines.parameter_layout import ParameterLayout
from etude.engines.replicas import Heartbeat, Launch, MessageGroup, Replicas, indivisible, lost

HEARTBEAT = 20  # seconds after which a process that is gone ends the others
CONNECTING = 120  # seconds after which one that does not come does; JAX aborts them
SMALLEST = 1024  # bytes of a message, which are filled up to a power of two: every size is compiled


class _JaxGroup(MessageGroup):
    """All processes of jax.distributed. See `protocols.ProcessGroup`.

    JAX waits for a collective without a limit, and cannot be interrupted. So collectives are called in a thread, and
    this one watches the heartbeats of the others.
    """

    def __init__(self) -> None:
        self._heartbeat = Heartbeat(_Store(), jax.process_index(), jax.process_count())
        self._heartbeat.start()
        self._calls: queue.SimpleQueue[tuple[_Call, Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), daemon=True, name="collectives").start()
        weakref.finalize(self, self._heartbeat.stop)
        weakref.finalize(self, self._calls.put, None)
        super().__init__(jax.process_index(), jax.process_count())

    def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns that all processes call. ReplicaError where one of them ended, has left or hangs."""
        call = _Call()
        self._calls.put((call, functools.partial(contextvars.copy_context().run, function, *arguments)))
        try:
            self._heartbeat.wait(what, call)
        except RuntimeError as error:
            if not call.done():
                atexit.register(_outlast, call)
            raise error if isinstance(error, ReplicaError) else lost(error) from error
        return call.result()

    def _exchange(self, what: str, message: bytes) -> list[bytes]:
        sizes = self._gathered(what, np.array([len(message)], np.int32)).reshape(-1)
        room = power_of_two(int(sizes.max()), SMALLEST)
        own = np.zeros(room, np.uint8)
        own[: len(message)] = np.frombuffer(message, np.uint8)
        return [each[:size].tobytes() for each, size in zip(self._gathered(what, own), sizes.tolist(), strict=True)]

    def _gathered(self, what: str, array: np.ndarray) -> Any:
        return self.call(what, multihost_utils.process_allgather, array)

    def _abandon(self, reason: str) -> None:
        self._heartbeat.leave(reason)


class _Call(Future[Any]):
    """What a call in the thread of collectives comes to. See `Heartbeat.wait`."""

    def wait(self, timeout: timedelta) -> None:
        try:
            error = self.exception(timeout.total_seconds())
        except TimeoutError:
            raise RuntimeError("it is not completed") from None
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise error

    def is_completed(self) -> bool:
        return self.done()


def _serve(calls: queue.SimpleQueue[tuple[_Call, Callable[[], Any]] | None]) -> None:
    while (asked := calls.get()) is not None:
        call, function = asked
        try:
            call.set_result(jax.block_until_ready(function()))
        except BaseException as error:  # is raised where the call was made
            call.set_exception(error)
        del asked, call, function  # its arguments are as large as the weights


def _outlast(call: _Call) -> None:
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
    """What the coordinator of jax.distributed keeps. See `Heartbeat`."""

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


AXIS = "batch"


def jax_replicas(devices: int | str, device: str, launch: Launch | None) -> Replicas | None:
    """The devices of a run; see `engines.replicas_for`."""
    if ":" in device:
        raise ConfigError(f"device = {device!r} is one device; got devices = {devices!r}. Give device='cuda' or 'cpu'.")
    if launch is not None and launch.size > 1 and not jax.distributed.is_initialized():
        _join(launch)
    # The devices of one kind, of all processes: GPUs where there are several, unless others are asked for
    found = [each for each in jax.devices() if each.platform == "gpu"]
    if device == "cpu" or (device == "auto" and len(found) < 2):
        found = jax.devices("cpu")
    elif not found:
        raise ConfigError(f"device={device!r} asks for GPUs; JAX sees none here. Use device='cpu' or 'auto'.")
    if devices == "all":
        devices = len(found)
    assert isinstance(devices, int)
    processes = jax.process_count()
    if devices > len(found) or (processes > 1 and devices != len(found)):
        kind = found[0].platform if found else device
        wanted = f"as many as there are, {len(found)}" if processes > 1 else f"at most {len(found)}"
        hint = f" CPUs count as one; XLA_FLAGS=--xla_force_host_platform_device_count={devices} makes more of them."
        raise ConfigError(
            f"devices = {devices}, and JAX sees {len(found)} of {kind!r} in {processes} processes; expected {wanted}. "
            f"Give devices='all'.{hint if kind == 'cpu' else ''}"
        )
    if devices == 1:
        return None
    group = _JaxGroup() if processes > 1 else None
    return Replicas(devices, device, tuple(found[:devices]), group)


def _join(launch: Launch) -> None:
    """Find the other processes, at the address that the launcher says, one port further: its own is taken."""
    # Without it, JAX ends a process that waits for one that ended or hangs, before anything is saved.
    jax.config.update("jax_enable_recoverability", True)
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "29500")
    address = os.environ.get("JAX_COORDINATOR_ADDRESS", f"{host}:{int(port) + 1}")
    try:
        jax.distributed.initialize(
            address, launch.size, launch.rank, initialization_timeout=CONNECTING, heartbeat_timeout_seconds=HEARTBEAT
        )
    except RuntimeError as error:
        raise ConfigError(
            f"Process {launch.rank} of {launch.size} cannot join the others at {address}: {error}. Make the run before "
            "JAX computes anything, or call jax.distributed.initialize() first; JAX_COORDINATOR_ADDRESS=HOST:PORT sets "
            "another address."
        ) from error
    if launch.rank == 0:
        atexit.register(outlive, range(1, launch.size))


class ShardedEngine(FunctionalEngine):
    """A `FunctionalEngine` whose learn call is one program of all devices: weights are on each, examples are divided,
    and XLA adds the all-reduce. Losses see the whole batch, so that every number is that of one device but for
    rounding. Where there are several processes, all call `learn` and `apply` with the same arguments; acting and
    evaluation take one device of this process."""

    backend: _ShardedBackend

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, replicas: Replicas, busy: Busy):
        super().__init__(agent, spaces, seed, _ShardedBackend(replicas, busy))
        self._group = replicas.group

    def _shared(self, scalars: tuple[str, ...]) -> Program:
        program = _ShardedProgram(self.layout, self.backend)
        if isinstance(self._group, _JaxGroup):
            for name in ("learn", "apply", "gradients"):
                setattr(program, name, functools.partial(self._group.call, name, getattr(program, name)))
        program.learn = functools.partial(self._learn_divided, program.learn)
        return program

    def values(self) -> Any:
        return jax.tree_util.tree_map(self.backend.local, self.held["values"])

    def _learn_divided(self, learn: Any, state: Any, batches: Any, noise: dict[str, Any], scalars: Any) -> Any:
        by_example = {name: array for name, array in noise.items() if name in self.layout.agent.noise}
        batches, by_example = self.backend.divided((batches, by_example))
        return learn(state, batches, noise | by_example, scalars)


class _ShardedProgram(Program):
    """See `ShardedEngine`."""

    backend: _ShardedBackend

    def _steps(self, state: Any, batches: Any, noise: Any, scalars: Any) -> Any:
        return self.backend.replicated(super()._steps(state, batches, noise, scalars))

    def _descend_named(self, state: Any, gradients: Any, scalars: Any) -> Any:
        return self.backend.replicated(super()._descend_named(state, gradients, scalars))


class _ShardedBackend(JaxBackend):
    """See `functional.Backend`. What is put on the device is put on all of them."""

    def __init__(self, replicas: Replicas, busy: Busy):
        super().__init__(replicas.device, busy)
        self._count, self._devices = replicas.count, replicas.devices
        mesh = Mesh(np.array(replicas.devices), (AXIS,))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_example = NamedSharding(mesh, PartitionSpec(None, AXIS))

    def settle(self, layout: ParameterLayout) -> None:
        kind = "cpu" if self._devices[0].platform == "cpu" else "cuda"
        self.device: str = f"{kind} x {self._count}"

    def put(self, tree: Any) -> Any:
        return self._placed(tree, self._everywhere)

    def divided(self, tree: Any) -> Any:
        """Arrays [k, B, ...], each device with its part of B. ConfigError where they cannot be divided equally."""
        for leaf in trees.leaves(tree):
            if leaf.shape[1] % self._count:
                raise ConfigError(indivisible(leaf.shape[1], self._count))
        return self._placed(tree, self._by_example)

    def _placed(self, tree: Any, sharding: NamedSharding) -> Any:
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)
        return jax.tree_util.tree_map(
            lambda x: jax.make_array_from_callback(np.shape(x), sharding, np.asarray(x).__getitem__), tree
        )

    def replicated(self, tree: Any) -> Any:
        """What is traced, the same on all devices."""
        return jax.lax.with_sharding_constraint(tree, self._everywhere)

    def local(self, array: Any) -> Any:
        """The copy of an array on one device of this process."""
        return array.addressable_data(0)
