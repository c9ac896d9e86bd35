"""Workers that act: each collects whole chunks by itself and hands them over through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.errors import ConfigError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.collector import SHORTEST, Collector
from etude.rollout.episodes import Played
from etude.rollout.plans import MakeRows, carry_out, chunk, piece
from etude.rollout.recall import Actor
from etude.rollout.rows import Ends, Rows, Template, capacity
from etude.rollout.worker import Channel, Memory, counters_of


class PortableActor(Actor, Protocol):
    """An actor that can be made again in another process."""

    def weights(self) -> Weights:
        """All weights by name: the same ones in every actor that is made."""


class Order(NamedTuple):
    """What to collect: `steps` time steps of the first n environments (see `plans.chunk`), or, where that is None, one
    episode of those at the positions `left`, on from time step `time` of the round (see `plans.whole_episodes`)."""

    step: int
    stride: int
    version: int  # of the weights to act with; 0: those that the actor was made with
    weights: tuple[str, ...]  # the names of those that differ from then
    cut: bool = False  # these steps do not continue what was collected before
    steps: int | None = None
    n: int = 0
    left: tuple[int, ...] = ()
    time: int = 0


class Piece(NamedTuple):
    """Some of the time steps that were ordered: rows in a buffer, and what has no fixed size."""

    buffer: int
    template: Template | None  # None: as in the piece before
    steps: int
    width: int  # columns in the buffer
    ends: Ends
    restarted: np.ndarray


class EpisodePiece(NamedTuple):
    """Some of the time steps of the episodes that were ordered."""

    buffer: int
    template: Template | None
    steps: int  # in the buffer
    width: int
    played: Played  # without its rows


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
    judged: bool = False

    def __call__(self, environments: Environments, memory: Memory) -> Acting:
        actor = self.make_actor()
        counters = counters_of(memory)
        collector = Collector(environments, actor, self.explorer, self.run_seed, counters, self.generation, self.judged)
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
        if order.steps is None:
            self._play(order, channel)
        else:
            self._fill(order, order.steps, channel)

    def _fill(self, order: Order, wanted: int, channel: Channel) -> None:
        width = len(self._collector.columns) if self._collector.environments.native else order.n
        room = self._room(width)
        for start in range(0, wanted, room):
            buffer, make_rows = self._next_buffer(channel)
            steps, step = min(room, wanted - start), order.step + start * order.stride
            plan = chunk(self._collector, steps, step, order.n, order.stride, make_rows)
            done = carry_out(plan, self._collector.environments)
            ends = Ends(done.final_index, done.final_observation, done.episodes)
            channel.send(Piece(buffer, self._template_once(), steps, width, ends, done.restarted))

    def _play(self, order: Order, channel: Channel) -> None:
        left, time, collector = order.left, order.time, self._collector
        while left:
            width = len(collector.columns) if collector.environments.native else len(left)
            limit = min(self._room(width), time or collector.expected)
            buffer, make_rows = self._next_buffer(channel)
            plan = piece(collector, left, limit, order.step + time * order.stride, order.stride, make_rows)
            played = carry_out(plan, collector.environments)._replace(rows=None)
            left, time = played.left, time + played.steps
            channel.send(EpisodePiece(buffer, self._template_once(), limit, width, played))
        collector.expected = max(SHORTEST, time)

    def _next_buffer(self, channel: Channel) -> tuple[int, MakeRows]:
        """The number of a buffer that the parent has read, and how to make rows in it."""
        while not self._free:
            self.serve(channel.receive(), channel)
        buffer = self._written % len(self._buffers)
        self._written, self._free = self._written + 1, self._free - 1
        return buffer, partial(Rows.over, self._buffers[buffer])

    def _template_once(self) -> Template | None:
        template = None if self._told else self._collector.template()
        self._told = True
        return template

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
