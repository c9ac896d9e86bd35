"""Workers that act: each collects by itself and returns its rows through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.data import PolicyVersion
from etude.base.errors import ConfigError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import SHORTEST, Collector
from etude.rollout.episodes import EpisodeRows
from etude.rollout.fragments import EpisodesFragment, StepsFragment, collect
from etude.rollout.pool.channel import RestoreState, SharedMemory, WorkerChannel, weights_in
from etude.rollout.rows import Carver, EndedEpisodes, Rows, Template, capacity


class PortableActor(Actor, Protocol):
    """An actor that can be made again in another process."""

    def weights(self) -> Weights:
        """All weights by name: the same ones in every actor that is made."""


class FragmentRequest(NamedTuple):
    """What a worker is to collect: `steps` time steps of its environments at these positions; or, if that is None, the
    rest of an episode of those at the positions `unfinished`, which have taken `time` time steps of it."""

    step: int  # environment steps of the run, at the first time step
    stride: int
    loads: int  # how often weights were loaded so far; 0: act with those that the actor was made with
    weights: tuple[str, ...]  # the names of those that differ from then
    version: PolicyVersion
    cut: bool = False  # these steps do not continue what was collected before
    steps: int | None = None
    positions: range = range(0)
    unfinished: tuple[int, ...] = ()
    time: int = 0


class StepsPart(NamedTuple):
    """Some of the requested time steps: rows in a buffer, and what has no fixed size."""

    buffer: int
    template: Template | None  # None: as before
    steps: int
    width: int  # columns in the buffer
    ends: EndedEpisodes
    restarted: np.ndarray


class EpisodesPart(NamedTuple):
    """Some time steps of the requested episodes."""

    buffer: int
    template: Template | None
    steps: int  # in the buffer
    width: int
    played: EpisodeRows  # without its rows


class BufferRead(NamedTuple):
    """The parent has read a buffer, which may be written again. A `FragmentRequest` implies it for all buffers."""


class ActingServer:
    """Collects what is requested, with an actor of its own."""

    def __init__(
        self,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        run_seed: int,
        actor_priorities: bool,
        state_recorded: bool,
        environments: Environments,
        memory: SharedMemory,
        generation: int,
    ):
        actor, counters = make_actor(), memory.counter_array()
        self._collector = Collector(
            environments, actor, explorer, run_seed, counters, generation, actor_priorities, state_recorded
        )
        if generation:
            self._collector.cut()
        self._weights, self._buffers = weights_in(memory.weights, actor.weights()), memory.buffers
        for weight in self._weights.values():  # the one copy of all workers, which their parent writes while they rest
            weight.flags.writeable = False
        self._loads = 0
        self._written, self._free = 0, 0  # buffers
        self._template_sent = False

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answers."""
        if isinstance(request, FragmentRequest):
            self._collect(request, channel)
        elif isinstance(request, BufferRead):
            self._free += 1
        elif isinstance(request, RestoreState):
            channel.send(self._collector.restore(request.state))
        else:
            channel.send(self._collector.state())

    def _collect(self, request: FragmentRequest, channel: WorkerChannel) -> None:
        if request.loads != self._loads:
            self._collector.actor.load({name: self._weights[name] for name in request.weights}, request.version)
            self._loads = request.loads
        self._free = len(self._buffers)
        if request.cut:
            self._collector.cut()
        if request.steps is None:
            self._collect_episodes(request, channel)
        else:
            self._collect_steps(request, request.steps, channel)

    def _collect_steps(self, request: FragmentRequest, total: int, channel: WorkerChannel) -> None:
        collector = self._collector
        positions = tuple(request.positions)
        width = self._width(positions)
        room = self._room(width)
        for start in range(0, total, room):
            buffer, carve = self._next_buffer(channel)
            steps, step = min(room, total - start), request.step + start * request.stride
            make_rows = partial(Rows.allocate, new=carve)
            fragment = StepsFragment(collector, positions, steps, step, request.stride, make_rows)
            done = collect(fragment, collector.environments).to_steps()
            ends = EndedEpisodes.of_steps(done)
            part = StepsPart(buffer, self._template_once(), steps, width, ends, done.restarted)
            channel.send(part, {buffer: carve.offset})

    def _collect_episodes(self, request: FragmentRequest, channel: WorkerChannel) -> None:
        unfinished, time, collector = request.unfinished, request.time, self._collector
        while unfinished:
            width = self._width(unfinished)
            steps = min(self._room(width), time or collector.expected)
            buffer, carve = self._next_buffer(channel)
            step = request.step + time * request.stride
            make_rows = partial(Rows.allocate, new=carve)
            fragment = EpisodesFragment(collector, unfinished, steps, step, request.stride, make_rows)
            played = collect(fragment, collector.environments).played()._replace(rows=None)
            unfinished, time = played.unfinished, time + int(played.lengths.max())
            part = EpisodesPart(buffer, self._template_once(), steps, width, played)
            channel.send(part, {buffer: carve.offset})
        collector.expected = max(SHORTEST, time)

    def _width(self, positions: tuple[int, ...]) -> int:
        """Columns of the rows of these environments: a native simulator steps all of its environments."""
        return len(self._collector.columns) if self._collector.environments.native else len(positions)

    def _next_buffer(self, channel: WorkerChannel) -> tuple[int, Carver]:
        """The number of a buffer that the parent has read, and what allocates rows in it."""
        while not self._free:
            self.serve(channel.receive(), channel)
        buffer = self._written % len(self._buffers)
        self._written, self._free = self._written + 1, self._free - 1
        return buffer, Carver(self._buffers[buffer])

    def _template_once(self) -> Template | None:
        template = None if self._template_sent else self._collector.template()
        self._template_sent = True
        return template

    def _room(self, width: int) -> int:
        size = len(self._buffers[0])
        room = capacity(self._collector.template(), width, size)
        if room < 1:
            raise ConfigError(
                f"One time step of {width} environments does not fit in the pool's buffer of {size} bytes: the "
                "explorer or info adds more than the observation has. Use more workers, or keep less of info."
            )
        return room
