"""Workers that act: each collects whole chunks by itself and hands them over through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.errors import ConfigError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.collector import Actor, Collector
from etude.rollout.rows import Ends, Rows, Template, capacity
from etude.rollout.worker import Channel, Memory, counters_of


class PortableActor(Actor, Protocol):
    """An actor that can be made again in another process."""

    def weights(self) -> Weights:
        """All weights by name: the same ones in every actor that is made."""


class Order(NamedTuple):
    """Collect `steps` time steps of the first n environments; see `Collector.collect`."""

    steps: int
    step: int
    n: int
    stride: int
    version: int  # of the weights to act with; 0: those that the actor was made with
    weights: tuple[str, ...]  # the names of those that differ from then
    cut: bool  # these steps do not continue what was collected before


class Piece(NamedTuple):
    """Some of the time steps that were ordered: rows in a buffer, and what has no fixed size."""

    buffer: int
    template: Template | None  # None: as in the piece before
    steps: int
    width: int  # columns in the buffer
    ends: Ends
    restarted: np.ndarray


class Free(NamedTuple):
    """The parent has read a buffer. (That it has read all of them before goes without saying in an Order.)"""


class Save(NamedTuple):
    """Send `Collector.state`."""


class Restore(NamedTuple):
    """Go on from this, and send the numbers of the environments that could not."""

    state: list[dict[str, Any]]


@dataclass(frozen=True)
class MakeActing:
    """Makes the server of one worker."""

    make_actor: Callable[[], PortableActor]
    explorer: Explorer
    run_seed: int
    generation: int

    def __call__(self, environments: Environments, memory: Memory) -> Acting:
        actor = self.make_actor()
        counters = counters_of(memory)
        collector = Collector(environments, actor, self.explorer, self.run_seed, counters, self.generation)
        if self.generation:
            collector.cut()
        return Acting(collector, weights_in(memory.weights, actor.weights()), memory)


class Acting:
    """Collects what is ordered."""

    def __init__(self, collector: Collector, weights: Weights, memory: Memory):
        self._collector, self._weights, self._buffers = collector, weights, memory.buffers
        self._version = 0
        self._written, self._free = 0, 0
        self._told = False

    def serve(self, request: Any, channel: Channel) -> None:
        """Do what was asked and send the answers."""
        if isinstance(request, Order):
            self._collect(request, channel)
        elif isinstance(request, Free):
            self._free += 1
        elif isinstance(request, Restore):
            channel.send(self._collector.restore(request.state))
        else:
            channel.send(self._collector.state())

    def _collect(self, order: Order, channel: Channel) -> None:
        if order.version != self._version:
            self._collector.actor.load({name: self._weights[name].copy() for name in order.weights})
            self._version = order.version
        self._free = len(self._buffers)
        if order.cut:
            self._collector.cut()
        width = len(self._collector.columns) if self._collector.environments.native else order.n
        room = self._room(width)
        for start in range(0, order.steps, room):
            while not self._free:
                self.serve(channel.receive(), channel)
            steps = min(room, order.steps - start)
            channel.send(self._collect_piece(order, start, steps, width))

    def _collect_piece(self, order: Order, start: int, steps: int, width: int) -> Piece:
        buffer = self._written % len(self._buffers)
        make_rows = partial(Rows.over, self._buffers[buffer])
        step = order.step + start * order.stride
        done = self._collector.collect(steps, step, order.n, order.stride, make_rows)
        self._written, self._free = self._written + 1, self._free - 1
        template = None if self._told else self._collector.template()
        self._told = True
        ends = Ends(done.final_index, done.final_observation, done.episodes)
        return Piece(buffer, template, steps, width, ends, done.restarted)

    def _room(self, width: int) -> int:
        size = len(self._buffers[0])
        room = capacity(self._collector.template(), width, size)
        if room < 1:
            raise ConfigError(
                f"One time step of {width} environments does not fit in the pool's buffer of {size} bytes. Use more "
                "workers, or give the pool options with a larger buffer."
            )
        return room


def weights_in(buffer: Any, like: Weights) -> Weights:
    """Arrays like these, by name, in a buffer. The same arguments give the same places in every process."""
    offset, found = 0, {}
    for name in sorted(like):
        value = np.asarray(like[name])
        found[name] = np.ndarray(value.shape, value.dtype, buffer, offset)
        offset += -(-value.nbytes // 64) * 64
    return found


def weights_size(like: Weights) -> int:
    """The size of the buffer that `weights_in` needs."""
    return sum(-(-np.asarray(value).nbytes // 64) * 64 for value in like.values()) + 64
