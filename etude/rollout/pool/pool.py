"""Collects in workers that act by themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.errors import NetworkError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.episodes import EpisodeAssembly
from etude.rollout.pool.acting import (
    ActingServer,
    BufferRead,
    EpisodesPart,
    FragmentRequest,
    PortableActor,
    StepsPart,
)
from etude.rollout.pool.channel import (
    RestoreState,
    SaveState,
    SharedMemory,
    weights_in,
    weights_size,
)
from etude.rollout.pool.process import Failure, Worker
from etude.rollout.pool.supervisor import PoolOptions, WorkerSupervisor, split_environments
from etude.rollout.rows import EndedEpisodes, Rows, Template
from etude.rollout.state import Ahead, answers, notes, pack, unpack


class Pool:
    """Collects steps in workers, each of which acts for its environments by itself. A `protocols.Rollout`.

    As long as no worker fails, any number of workers collects the same steps as `InProcess`, bit for bit.

    make_environments: called in a worker with the indices of its environments. make_actor: called in a worker, and once
        here to see its weights. Both travel by cloudpickle. environments: how many there are, or the indices of those
        of this process.
    """

    def __init__(
        self,
        make_environments: Callable[[list[int]], Environments],
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        run_seed: int,
        environments: int | range,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        parts = split_environments(environments, workers)
        self._indices = [index for part in parts for index in part]
        self.environments: int = len(self._indices)
        self._overlap = options.overlap
        like, self._backend = make_actor().weights(), options.backend
        self._weights = self._backend.new_buffer(weights_size(like))  # one copy, which all workers read
        self._shared = weights_in(self._weights, like)
        self._staged: Weights = {}  # to be written once no worker collects
        self._written = False  # since the last request
        self._loaded: set[str] = set()
        self._loads = 0
        self._version = INITIAL_VERSION
        self._task: Any = None  # for the next request
        self._templates: dict[int, Template] = {}
        self._pending: Pending | None = None  # what workers collect ahead
        self._ahead: Ahead | None = None  # what they have collected ahead
        self._cut: set[int] = set()  # the workers whose next steps do not continue what was returned
        server = partial(ActingServer, make_actor, explorer, run_seed, options.actor_priorities, options.state_recorded)
        self._supervisor = WorkerSupervisor(
            [
                self._backend.worker(i, columns, self._memory(len(columns), options.buffer), server)
                for i, columns in enumerate(parts)
            ],
            make_environments,
            run_seed,
            options,
        )
        self.spaces: Any = self._supervisor.ready.spaces

    def collect(
        self, steps: int, step: int, environments: range | None = None, upcoming: int = 0, stride: int | None = None
    ) -> Steps:
        """`steps` time steps of the environments at these positions; see `protocols.Rollout`.

        stride: environment steps that the run takes in a time step, where other processes collect, too.
        """
        indices = self._indices if environments is None else self._indices[environments.start : environments.stop]
        collected = self._collected_ahead()
        if not answers(collected, steps, indices):
            self._drop(collected)
            collected = self._finish(self._request_steps(steps, step, indices, stride))
        self._ahead = None
        if upcoming and self._overlap:
            self._pending = self._request_steps(upcoming, step + len(collected), self._indices)
        return collected

    def collect_episodes(self, step: int, ahead: bool = False, stride: int | None = None) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`. stride: see `collect`.

        Of a worker that fails, the episodes that had ended and been handed over are kept. Native simulators go on until
        all environments of a worker have ended an episode.
        """
        collected = self._collected_ahead()
        if not isinstance(collected, tuple):
            self._drop(collected)
            collected = self._finish(self._request_episodes(step, stride))
        self._ahead = None
        if ahead and self._overlap:
            self._pending = self._request_episodes(step + sum(len(part) for part in collected))
        return collected

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

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._supervisor.take_warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index, and what was collected ahead."""
        self._collected_ahead()
        self._supervisor.set_task(self._task)
        parts = self._supervisor.ask_all({worker.number: SaveState() for worker in self._supervisor.workers})
        for number in self._cut:
            parts[number] = [column | {"restarted": True} for column in parts[number]]
        return pack([column for part in parts for column in part], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        self._collected_ahead()
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        self._cut.clear()
        self._supervisor.set_task(self._task)
        workers = self._supervisor.workers
        states = dict(zip(self._indices, columns, strict=True))
        requests = {worker.number: RestoreState([states[c] for c in worker.columns]) for worker in workers}
        return notes([number for part in self._supervisor.ask_all(requests) for number in part])

    def close(self) -> None:
        """End the workers and free the memory they share. May be called twice."""
        self._supervisor.close()

    def _memory(self, environments: int, size: int) -> SharedMemory:
        """Two buffers for rows: the parent reads one while the worker writes the other."""
        buffers = self._backend.new_buffer(size), self._backend.new_buffer(size)
        return self._backend.memory(environments, buffers, self._weights)

    def _collected_ahead(self) -> Ahead | None:
        """What was collected ahead, once it is complete."""
        if self._pending is not None:
            self._ahead = self._finish(self._pending)
            self._pending = None
        return self._ahead

    def _drop(self, ahead: Ahead | None) -> None:
        if ahead is None:
            return
        dropped = len(ahead) if isinstance(ahead, Steps) else sum(len(part) for part in ahead)
        self._supervisor.warnings.append(f"{dropped} steps collected ahead are dropped: a different chunk is wanted.")
        self.cut()

    def _request_steps(self, steps: int, step: int, indices: list[int], stride: int | None = None) -> Pending:
        request = self._request(step, stride or len(indices))
        return self._send(PendingSteps(request, steps, indices, self._supervisor.workers))

    def _request_episodes(self, step: int, stride: int | None = None) -> Pending:
        request, native = self._request(step, stride or self.environments), self._supervisor.ready.native
        return self._send(PendingEpisodes(request, self._supervisor.workers, native))

    def _request(self, step: int, stride: int) -> FragmentRequest:
        """What all workers are asked. They must be at rest, because it writes the weights that they read, and
        sends the task."""
        if self._staged:
            self._write(self._staged)
            self._staged = {}
        if self._written:
            self._loads, self._written = self._loads + 1, False
            self._backend.publish(self._weights)
        self._supervisor.set_task(self._task)
        return FragmentRequest(step, stride, self._loads, tuple(sorted(self._loaded)), self._version)

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
                self._templates[worker.number] = answer.template or self._templates[worker.number]
                if pending.add(worker, answer, self._templates[worker.number]):
                    worker.failures = 0
                if pending.awaits(worker):
                    worker.ask(BufferRead())
        return pending.result()


class Pending(Protocol):
    """What workers were asked to collect, and the parts that have arrived."""

    workers: list[Worker]  # those that take part

    def request(self, worker: Worker) -> FragmentRequest:
        """What a worker is asked to do, as long as no part of it is kept."""

    def awaits(self, worker: Worker) -> bool:
        """Whether there are more parts to come from a worker."""

    def add(self, worker: Worker, part: Any, template: Template) -> bool:
        """Copy a part out of the worker's buffer; whether something is now there that `drop` would keep."""

    def drop(self, worker: Worker) -> None:
        """Drop what cannot be kept of the parts of a worker that failed."""

    def result(self) -> Any:
        """All parts, in the order of environments."""


class PendingSteps:
    """Time steps of the environments with these indices, which follow each other. Returns `Steps`."""

    def __init__(self, request: FragmentRequest, steps: int, indices: list[int], workers: list[Worker]):
        self._request, self._steps, self._indices = request, steps, indices
        self.workers: list[Worker] = [worker for worker in workers if self._positions(worker)]
        self._parts: dict[int, list[StepsPart]] = {worker.number: [] for worker in self.workers}
        self._rows: Rows | None = None

    def request(self, worker: Worker) -> FragmentRequest:
        return self._request._replace(steps=self._steps, positions=self._positions(worker))

    def awaits(self, worker: Worker) -> bool:
        return self._done(worker) < self._steps

    def add(self, worker: Worker, part: StepsPart, template: Template) -> bool:
        if self._rows is None:
            self._rows = Rows.allocate(template, self._steps, len(self._indices))
        written = Rows.over(worker.memory.buffers[part.buffer], template, part.steps, part.width)
        positions = self._positions(worker)
        if len(positions) < part.width:  # a native simulator steps all of its environments
            written = written.between(slice(positions.start, positions.stop))
        self._rows.place(written, self._done(worker), self._columns(worker))
        self._parts[worker.number].append(part)
        return not self.awaits(worker)

    def drop(self, worker: Worker) -> None:
        self._parts[worker.number].clear()  # all columns have as many rows: nothing from before the failure is kept

    def result(self) -> Steps:
        restarted = np.zeros(len(self._indices), bool)
        ends, places = [], []
        for worker in self.workers:
            parts, columns = self._parts[worker.number], self._columns(worker)
            restarted[columns] = parts[0].restarted
            start = 0
            for part in parts:
                ends.append(part.ends)
                places.append((start, columns.start))
                start += part.steps
        assert self._rows is not None
        return self._rows.to_steps(EndedEpisodes.join(ends, places), np.array(self._indices), restarted)

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


class PendingEpisodes:
    """One episode of every environment. Returns one `Steps` for each."""

    def __init__(self, request: FragmentRequest, workers: list[Worker], native: bool):
        self.workers: list[Worker] = workers
        self._request = request
        self._episodes = [EpisodeAssembly(len(worker.columns), native) for worker in workers]

    def request(self, worker: Worker) -> FragmentRequest:
        episodes = self._episodes[worker.number]
        return self._request._replace(unfinished=episodes.unfinished, time=episodes.time)

    def awaits(self, worker: Worker) -> bool:
        return bool(self._episodes[worker.number].unfinished)

    def add(self, worker: Worker, part: EpisodesPart, template: Template) -> bool:
        rows = Rows.over(worker.memory.buffers[part.buffer], template, part.steps, part.width)
        episodes = self._episodes[worker.number]
        before = len(episodes.unfinished)
        episodes.add(part.played._replace(rows=rows))
        return len(episodes.unfinished) < before

    def drop(self, worker: Worker) -> None:
        episodes = self._episodes[worker.number]  # those that have ended are kept
        episodes.drop(episodes.unfinished)

    def result(self) -> tuple[Steps, ...]:
        parts = zip(self.workers, self._episodes, strict=True)
        return tuple(steps for worker, part in parts for steps in part.to_steps(np.array(worker.columns)))
