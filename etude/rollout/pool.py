"""Collects in workers that act by themselves: both ends. Rows come back through shared memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.errors import ConfigError, NetworkError
from etude.base.seeding import episode_seed
from etude.base.spaces import Spaces, zeros
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import SHORTEST, Collector, EndedEpisodes, Rows, Template, capacity, ended_in, joined_ends
from etude.rollout.fragments import EpisodeAssembly, EpisodeRows, EpisodesFragment, StepsFragment, StepsRollout, collect
from etude.rollout.state import Ahead, notes
from etude.workers.channel import BufferRead, Carver, Job, Server, SharedMemory, WorkerChannel, weights_in, weights_size
from etude.workers.process import Failure, Worker
from etude.workers.supervisor import Supervised, WorkerOptions, WorkerSupervisor, split_environments

MakeEnvironments = Callable[[list[int]], Environments]  # called in a worker with the indices of its environments


@dataclass(frozen=True)
class PoolOptions(WorkerOptions):
    """How a pool treats its workers, and what they collect."""

    overlap: bool = False  # collect the next steps while the parent learns
    remote_environments: bool | None = None  # where this process acts: whether workers step; None: if that is quicker
    actor_priorities: bool = False  # workers compute initial priorities of what they collect, the extra `priority`
    state_recorded: bool = True  # whether the recurrent state of agents that have one is the extra `recurrent_state`
    halves: bool = False  # where this process acts: for one half of the workers while the other half steps


def buffer_size(spaces: Spaces, environments: int, workers: int) -> int:
    """Bytes for what one worker hands over at a time: four time steps of its environments, and what explorers and
    `info` add to them."""
    leaves = [*trees.leaves(zeros(spaces.observation, 1)), *trees.leaves(zeros(spaces.action, 1))]
    return WorkerOptions.buffer + 4 * -(-environments // workers) * sum(leaf.nbytes for leaf in leaves)


# -- in the worker -----------------------------------------------------------------------------------------------------


SAVE_STATE = "save state"  # a request: send the state of the environments


class RestoreState(NamedTuple):
    """Continue from this state, and send the environments that could not."""

    state: list[dict[str, Any]]


class AboutEnvironments(NamedTuple):
    """What a worker says of its environments once it has made them: see `protocols.Environments`."""

    spaces: Spaces
    native: bool
    reward_shape: tuple[int, ...]
    info_names: tuple[str, ...]


class EnvironmentServer(Server):
    """Makes and closes environments. In the place of a worker that failed, it goes on with the episodes after those
    that were open; see `SharedMemory.counter_array`."""

    def __init__(self, make_environments: MakeEnvironments, run_seed: int, job: Job, memory: SharedMemory):
        environments = self._environments = make_environments(job.columns)
        self._memory, self._counters = memory, memory.counter_array()
        self._run_seed, self._generation = run_seed, job.generation
        try:
            if job.task is not None:
                environments.set_task(job.task)
            if job.generation:
                _skip_to(environments, self._counters[1:], run_seed)
            self._begin()
        except BaseException:
            self.close()
            raise
        shape, info_names = environments.reward_shape, environments.info_names
        self.ready = AboutEnvironments(environments.spaces, environments.native, shape, info_names)

    @abstractmethod
    def _begin(self) -> None:
        """Make whatever else it takes."""

    def notes(self) -> list[str]:
        """Warnings of the environments since the last call."""
        return self._environments.warnings()

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._environments.set_task(task)

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()


def _skip_to(environments: Environments, episodes: np.ndarray, run_seed: int) -> None:
    """Let the next reset start these episodes, or later ones if an empty replay does not end where it should. A native
    simulator begins new ones, with a seed that none before had."""
    environments.reset()
    state = environments.state()
    for saved, column, episode in zip(state, environments.columns, episodes, strict=True):
        saved["episode"], saved["seed"] = int(episode) - 1, episode_seed(run_seed, int(column), int(episode) - 1)
    environments.restore(state)
    episodes[:] = [saved["episode"] + 1 for saved in environments.state()]


class PortableActor(Actor, Protocol):
    """An actor that can be made again in another process."""

    def weights(self) -> Weights:
        """All weights by name: the same ones in every actor that is made."""


class _FragmentRequest(NamedTuple):
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


class _CollectedPart(NamedTuple):
    """Some of the requested time steps: rows in a buffer, and what has no fixed size."""

    buffer: int
    template: Template | None  # None: as before
    steps: int  # in the buffer
    width: int  # columns in the buffer
    ended: EndedEpisodes | None  # of requested time steps
    restarted: np.ndarray
    played: EpisodeRows | None = None  # of requested episodes, without its rows


class CollectingServer(EnvironmentServer):
    """Collects with an actor of its own. options: of its `Collector`."""

    def __init__(self, make_actor: Callable[[], Any], explorer: Explorer, options: dict[str, Any], *made_from: Any):
        self._make_actor, self._explorer, self._options = make_actor, explorer, options
        super().__init__(*made_from)

    def _begin(self) -> None:
        self._actor = self._make_actor()
        self._collector = Collector(
            self._environments, self._actor, self._explorer, self._run_seed, self._counters, self._generation,
            **self._options,
        )  # fmt: skip

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answers."""
        if isinstance(request, RestoreState):
            channel.send(self._collector.restore(request.state))
        else:
            channel.send(self._collector.state())


class _ActingServer(CollectingServer):
    """Collects what is requested."""

    def _begin(self) -> None:
        super()._begin()
        if self._generation:
            self._collector.cut()
        memory = self._memory
        self._weights, self._buffers = weights_in(memory.weights, self._actor.weights()), memory.buffers
        for weight in self._weights.values():  # the one copy of all workers, which their parent writes while they rest
            weight.flags.writeable = False
        self._loads = 0
        self._written, self._free = 0, 0  # buffers
        self._template_sent = False

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answers."""
        if isinstance(request, _FragmentRequest):
            self._collect(request, channel)
        elif isinstance(request, BufferRead):
            self._free += 1
        else:
            super().serve(request, channel)

    def _collect(self, request: _FragmentRequest, channel: WorkerChannel) -> None:
        """In fragments, each of which fits into a buffer that the parent has read."""
        collector = self._collector
        if request.loads != self._loads:
            collector.actor.load({name: self._weights[name] for name in request.weights}, request.version)
            self._loads = request.loads
        self._free = len(self._buffers)
        if request.cut:
            collector.cut()
        positions = tuple(request.positions) if request.steps is not None else request.unfinished
        time, stride = request.time, request.stride  # time steps so far
        while positions and time != request.steps:
            width = len(collector.columns) if self._environments.native else len(positions)
            room, left = self._room(width), time or collector.expected
            steps = min(room, left if request.steps is None else request.steps - time)
            while not self._free:
                self.serve(channel.receive(), channel)
            buffer = self._written % len(self._buffers)
            self._written, self._free = self._written + 1, self._free - 1
            carve, step = Carver(self._buffers[buffer]), request.step + time * stride
            make_rows = partial(Rows.allocate, new=carve)
            template, self._template_sent = None if self._template_sent else collector.template, True
            if request.steps is None:
                episodes = EpisodesFragment(collector, positions, steps, step, stride, make_rows)
                played = collect(episodes, self._environments).played()._replace(rows=None)
                positions, time = played.unfinished, time + int(played.lengths.max())
                part = _CollectedPart(buffer, template, steps, width, None, played.restarted, played)
            else:
                fragment = StepsFragment(collector, positions, steps, step, stride, make_rows)
                done, time = collect(fragment, self._environments).to_steps(), time + steps
                ended = ended_in(done)
                part = _CollectedPart(buffer, template, steps, width, ended, done.restarted)
            channel.send(part, {buffer: carve.offset})
        if request.steps is None:
            collector.expected = max(SHORTEST, time)

    def _room(self, width: int) -> int:
        """How many time steps of so many environments fit into a buffer."""
        size = len(self._buffers[0])
        room = capacity(self._collector.template, width, size)
        if room < 1:
            raise ConfigError(
                f"One time step of {width} environments does not fit in the pool's buffer of {size} bytes: the "
                "explorer or info adds more than the observation has. Use more workers, or keep less of info."
            )
        return room


# -- in the parent -----------------------------------------------------------------------------------------------------


class Pool(Supervised, StepsRollout):
    """Collects steps in workers, each of which acts for its environments by itself. A `protocols.Rollout`.

    As long as no worker fails, any number of workers collects the same steps as `InProcess`, bit for bit.

    make_environments: called in a worker with the indices of its environments. make_actor: called in a worker, and once
        here to see its weights. Both travel by cloudpickle. environments: how many there are, or the indices of those
        of this process.
    """

    def __init__(
        self,
        make_environments: MakeEnvironments,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        run_seed: int,
        environments: int | range,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        parts = split_environments(environments, workers)
        self._overlap = options.overlap
        like, backend = make_actor().weights(), options.backend
        self._backend = backend
        self._weights = backend.new_buffer(weights_size(like))  # one copy, which all workers read
        self._shared = weights_in(self._weights, like)
        self._staged: Weights = {}  # to be written once no worker collects
        self._written = False  # since the last request
        self._loaded: set[str] = set()
        self._loads = 0
        self._version = INITIAL_VERSION
        self._task: Any = None  # for the next request
        self._templates: dict[int, Template] = {}
        self._pending: Pending | None = None  # what workers collect ahead
        self._cut: set[int] = set()  # the workers whose next steps do not continue what was returned
        kept = {"actor_priorities": options.actor_priorities, "state_recorded": options.state_recorded}
        server = partial(_ActingServer, make_actor, explorer, kept, make_environments, run_seed)
        workers_of_parts = []
        for i, columns in enumerate(parts):  # the parent reads one of two buffers while the worker writes the other
            buffers = backend.new_buffer(options.buffer), backend.new_buffer(options.buffer)
            workers_of_parts.append(backend.worker(i, columns, server, buffers, self._weights))
        self._supervisor = WorkerSupervisor(workers_of_parts, options)
        super().__init__(self._supervisor.ready.spaces, [index for part in parts for index in part])

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        return self._finish(self._request_steps([self._columns[i] for i in positions], steps, step, stride))

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        """Of a worker that fails, the episodes that had ended and been handed over are kept. Native simulators go on
        until all environments of a worker have ended an episode."""
        return self._finish(self._request_episodes(step, stride))

    def _begin_steps(self, steps: int, step: int) -> None:
        if self._overlap:
            self._pending = self._request_steps(list(self._columns), steps, step, self.environments)

    def _begin_episodes(self, step: int) -> None:
        if self._overlap:
            self._pending = self._request_episodes(step, self.environments)

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        self._cut = {worker.number for worker in self._supervisor.workers}

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these weights, of this version, from the next request on. Copied at once: the caller may go on
        changing them; to where workers read them, unless they are collecting with those that are there."""
        known = self._shared
        for name, value in weights.items():
            if name not in known:
                raise NetworkError(f"There is no weight named {name!r}; the actor has {', '.join(sorted(known))}.")
            if known[name].shape != np.shape(value):
                raise NetworkError(f"Weight {name!r} has shape {np.shape(value)}; the actor's has {known[name].shape}.")
        if self._pending is None and not self._staged:
            self._write(weights)
        else:
            self._staged |= {name: np.array(value) for name, value in weights.items()}
        self._version = version

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from the next request on: after what is collected ahead."""
        self._task = task

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        self._await_pending()
        return super().restore(state)

    def _column_states(self) -> list[dict[str, Any]]:
        self._await_pending()
        self._supervisor.set_task(self._task)
        parts = self._ask_each(lambda worker: SAVE_STATE)
        for number in self._cut:
            parts[number] = [column | {"restarted": True} for column in parts[number]]
        return [column for part in parts for column in part]

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        self._cut.clear()
        self._supervisor.set_task(self._task)
        states = dict(zip(self._columns, columns, strict=True))
        parts = self._ask_each(lambda worker: RestoreState([states[column] for column in worker.columns]))
        return notes([number for part in parts for number in part])

    def _await_pending(self) -> None:
        """Take in what workers collect ahead, once it is complete."""
        if self._pending is not None:
            self._ahead, self._pending = self._finish(self._pending), None

    def _take_ahead(self) -> Ahead | None:
        self._await_pending()
        return super()._take_ahead()

    def _drop(self, ahead: Ahead) -> None:
        dropped = len(ahead) if isinstance(ahead, Steps) else sum(map(len, ahead))
        warning = f"{dropped} steps collected ahead are dropped: a different chunk is wanted."
        self._supervisor.warnings.append(warning)
        super()._drop(ahead)

    def _request_steps(self, indices: list[int], steps: int, step: int, stride: int) -> Pending:
        return self._send(_PendingSteps(self._request(step, stride), steps, indices, self._supervisor.workers))

    def _request_episodes(self, step: int, stride: int) -> Pending:
        native = self._supervisor.ready.native
        return self._send(_PendingEpisodes(self._request(step, stride), self._supervisor.workers, native))

    def _request(self, step: int, stride: int) -> _FragmentRequest:
        """What all workers are asked. They must be at rest, because it writes the weights that they read, and
        sends the task."""
        if self._staged:
            self._write(self._staged)
            self._staged = {}
        if self._written:
            self._loads, self._written = self._loads + 1, False
            self._backend.publish(self._weights)
        self._supervisor.set_task(self._task)
        return _FragmentRequest(step, stride, self._loads, tuple(sorted(self._loaded)), self._version)

    def _write(self, weights: Weights) -> None:
        for name, value in weights.items():
            self._shared[name][...] = value
        self._loaded.update(weights)
        self._written = True

    def _send(self, pending: Pending) -> Pending:
        for worker in pending.workers:
            worker.ask(pending.request(worker)._replace(cut=worker.number in self._cut))
            self._cut.discard(worker.number)
        return pending

    def _finish(self, pending: Pending) -> Any:
        """Receive the parts that workers collect until all are there."""
        while busy := [worker for worker in pending.workers if pending.awaits(worker)]:
            for worker, answer in self._supervisor.wait(busy):
                if isinstance(answer, Failure):
                    pending.drop(worker)
                    self._supervisor.replace(worker, answer)
                    worker.ask(pending.request(worker))
                    continue
                template = self._templates[worker.number] = answer.template or self._templates[worker.number]
                rows = Rows.over(worker.memory.buffers[answer.buffer], template, answer.steps, answer.width)
                if pending.add(worker, answer._replace(template=template), rows):
                    worker.failures = 0
                if pending.awaits(worker):
                    worker.ask(BufferRead())
        return pending.result()


class _PendingSteps:
    """What workers were asked to collect, and the parts that have arrived: time steps of the environments with these
    indices, which follow each other. Returns `Steps`."""

    def __init__(self, request: _FragmentRequest, steps: int, indices: list[int], workers: list[Worker]):
        self._request, self._steps, self._indices = request, steps, indices
        self.workers: list[Worker] = [worker for worker in workers if self._positions(worker)]  # those that take part
        self._parts: dict[int, list[_CollectedPart]] = {worker.number: [] for worker in self.workers}
        self._rows: Rows | None = None

    def request(self, worker: Worker) -> _FragmentRequest:
        """What a worker is asked to do, as long as no part of it is kept."""
        return self._request._replace(steps=self._steps, positions=self._positions(worker))

    def awaits(self, worker: Worker) -> bool:
        """Whether there are more parts to come from a worker."""
        return self._done(worker) < self._steps

    def add(self, worker: Worker, part: _CollectedPart, written: Rows) -> bool:
        """Copy a part out of the worker's buffer; whether something is now there that `drop` would keep."""
        if self._rows is None:
            assert part.template is not None
            self._rows = Rows.allocate(part.template, self._steps, len(self._indices))
        positions = self._positions(worker)
        if len(positions) < part.width:  # a native simulator steps all of its environments
            written = written.between(slice(positions.start, positions.stop))
        self._rows.place(written, self._done(worker), self._columns(worker))
        self._parts[worker.number].append(part)
        return not self.awaits(worker)

    def drop(self, worker: Worker) -> None:
        """Drop what cannot be kept of the parts of a worker that failed: all columns have as many rows."""
        self._parts[worker.number].clear()

    def result(self) -> Steps:
        """All parts, in the order of environments."""
        restarted = np.zeros(len(self._indices), bool)
        ends, places = [], []
        for worker in self.workers:
            parts, columns = self._parts[worker.number], self._columns(worker)
            restarted[columns] = parts[0].restarted
            start = 0
            for part in parts:
                assert part.ended is not None
                ends.append(part.ended)
                places.append((start, columns.start))
                start += part.steps
        assert self._rows is not None
        return self._rows.to_steps(joined_ends(ends, places), np.array(self._indices), restarted)

    def _done(self, worker: Worker) -> int:
        return sum(part.steps for part in self._parts[worker.number])

    def _positions(self, worker: Worker) -> range:
        """Those of a worker's environments that take part."""
        first, last = worker.columns[0], worker.columns[-1]
        return range(max(self._indices[0], first) - first, min(self._indices[-1], last) + 1 - first)

    def _columns(self, worker: Worker) -> slice:
        """Where they are in the rows."""
        positions, offset = self._positions(worker), worker.columns[0] - self._indices[0]
        return slice(offset + positions.start, offset + positions.stop)


class _PendingEpisodes:
    """The same of one episode of every environment. Returns one `Steps` for each."""

    def __init__(self, request: _FragmentRequest, workers: list[Worker], native: bool):
        self.workers: list[Worker] = workers
        self._request = request
        self._episodes = [EpisodeAssembly(len(worker.columns), native) for worker in workers]

    def request(self, worker: Worker) -> _FragmentRequest:
        """See `_PendingSteps`."""
        episodes = self._episodes[worker.number]
        return self._request._replace(unfinished=episodes.unfinished, time=episodes.time)

    def awaits(self, worker: Worker) -> bool:
        """See `_PendingSteps`."""
        return bool(self._episodes[worker.number].unfinished)

    def add(self, worker: Worker, part: _CollectedPart, written: Rows) -> bool:
        """See `_PendingSteps`."""
        assert part.played is not None
        episodes = self._episodes[worker.number]
        before = len(episodes.unfinished)
        episodes.add(part.played._replace(rows=written))
        return len(episodes.unfinished) < before

    def drop(self, worker: Worker) -> None:
        """Of a worker that failed, episodes that have ended are kept."""
        episodes = self._episodes[worker.number]
        episodes.drop(episodes.unfinished)

    def result(self) -> tuple[Steps, ...]:
        """See `_PendingSteps`."""
        parts = zip(self.workers, self._episodes, strict=True)
        return tuple(steps for worker, part in parts for steps in part.to_steps(np.array(worker.columns)))


Pending = _PendingSteps | _PendingEpisodes
