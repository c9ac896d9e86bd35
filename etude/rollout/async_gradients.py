"""Asynchronous gradients: actor-learners, in this process or in workers, collect a rollout of one environment
each, with their own copies of the weights, and differentiate the losses there. Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps, WorkerGradients
from etude.base.spaces import Spaces
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import Collector
from etude.rollout.fragments import StepsFragment, collect
from etude.rollout.pool.channel import (
    RestoreState,
    SaveState,
    SharedMemory,
    WorkerChannel,
    weights_in,
    weights_size,
)
from etude.rollout.pool.process import Failure
from etude.rollout.pool.supervisor import PoolOptions, WorkerSupervisor
from etude.rollout.state import ends_of, notes, pack, plain_ends, unpack

_SHARED = np.empty(0, np.float32)  # stands for an array that lies in shared memory


class ActorLearner(Actor, Protocol):
    """Acts, and differentiates the losses at what it collected."""

    def gradients(self, steps: Steps) -> WorkerGradients:
        """Gradients at the steps [T, 1] of one environment, with the weights that were loaded last."""


class RolloutRequest(NamedTuple):
    """`steps` time steps of one environment. step: environment steps of the run so far; each time step advances it by
    `stride`. version: of the weights to collect with."""

    environment: int
    steps: int
    step: int
    stride: int
    version: PolicyVersion


class ActorLearners(Protocol):
    """Local or remote actor-learners, one for each environment."""

    spaces: Spaces

    def begin(self, request: RolloutRequest, weights: Weights) -> None:
        """Let an environment collect and differentiate a rollout with these weights."""

    def finish(self, environment: int) -> WorkerGradients:
        """Wait for its gradients."""

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and notes of the environments."""

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin in rollouts from the next `begin` on."""

    def state(self) -> list[dict[str, Any]]:
        """The state of every environment; only while none collects."""

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the indices of environments that could not."""

    def close(self) -> None:
        """Close the environments. May be called twice."""


class AsyncGradients:
    """The gradients of N environments, always in their order. A `protocols.Rollout` that returns `WorkerGradients`.

    An environment starts its next rollout, with the weights that were loaded last, when its gradients have been taken
    and applied. So all of them collect all the time, and all gradients but the first N are N - 1 updates old, whether
    the actor-learners are local or remote, and however fast they are.

    length: time steps of a rollout. A call for fewer steps counts some of the steps of a rollout; the gradients come
    with the last of them, and a call for more steps than are left of it returns fewer.
    """

    def __init__(self, actor_learners: ActorLearners, environments: int, length: int):
        self.spaces: Spaces = actor_learners.spaces
        self.environments: int = environments
        self._actor_learners, self._length = actor_learners, length
        self._weights: Weights = {}
        self._version = INITIAL_VERSION
        self._begun: set[int] = set()
        self._finished: dict[int, WorkerGradients] = {}  # those of `_begun` that were waited for already
        self._turn = 0  # whose gradients come next
        self._counted: int | None = 0  # how many steps of its rollout have counted; None: as the steps of the run say

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> WorkerGradients:
        """At most `steps` environment steps, all of one environment; see `protocols.Rollout`."""
        for environment in range(self.environments):
            if environment not in self._begun:
                request = RolloutRequest(environment, self._length, step, self.environments, self._version)
                self._actor_learners.begin(request, self._weights)
                self._begun.add(environment)
        if self._counted is None:
            length = next((each.steps for each in self._finished.values()), self._length)
            self._turn, self._counted = step // length % self.environments, step % length
        restored = self._finished.get(self._turn)  # may be of a run with another length of its rollouts
        left = max(1, (self._length if restored is None else restored.steps) - self._counted)
        if steps < left:
            self._counted += steps
            return WorkerGradients(steps)
        found = self._finish(self._turn)
        del self._finished[self._turn]
        self._begun.discard(self._turn)
        self._turn, self._counted = (self._turn + 1) % self.environments, 0
        return dataclasses.replace(found, steps=left)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Let rollouts start with these weights, of this version, from now on."""
        self._weights, self._version = {**self._weights, **weights}, version

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes of rollouts that start from now on."""
        self._actor_learners.set_task(task)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._actor_learners.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index, and the gradients that are not applied yet.
        Waits for all rollouts that have begun."""
        waiting = {str(i): _plain(self._finish(i)) for i in sorted(self._begun)}
        turn = {} if self._counted is None else {"turn": self._turn, "counted": self._counted}
        return pack(self._actor_learners.state()) | {"worker_gradients": waiting} | turn

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from `state`; returns notes on episodes that could not be replayed."""
        for environment in sorted(self._begun):
            self._finish(environment)
        columns, _ = unpack(state, self.environments, self.spaces)
        waiting = state.get("worker_gradients", {})  # none if a rollout was given up
        saved_before_turns = "worker_gradients" in state and "turn" not in state
        self._turn, self._counted = state.get("turn", 0), None if saved_before_turns else state.get("counted", 0)
        self._finished = {int(i): _worker_gradients(plain) for i, plain in waiting.items()}
        self._begun = set(self._finished)
        return notes(self._actor_learners.restore(columns))

    def close(self) -> None:
        """End workers and close environments. May be called twice."""
        self._actor_learners.close()

    def _finish(self, environment: int) -> WorkerGradients:
        if environment not in self._finished:
            self._finished[environment] = self._actor_learners.finish(environment)
        return self._finished[environment]


class LocalActorLearners:
    """Actor-learners in this process: a rollout is collected when it is requested."""

    def __init__(self, environments: Environments, actor: ActorLearner, explorer: Explorer, run_seed: int):
        self.spaces: Spaces = environments.spaces
        self._collector, self._actor = Collector(environments, actor, explorer, run_seed), actor
        self._gradients: dict[int, WorkerGradients] = {}  # by environment, those not taken yet

    def begin(self, request: RolloutRequest, weights: Weights) -> None:
        """Collect and differentiate a rollout with these weights."""
        gradients = _gradients(self._collector, self._actor, request, weights)
        self._gradients[request.environment] = gradients

    def finish(self, environment: int) -> WorkerGradients:
        """The gradients of its rollout."""
        return self._gradients.pop(environment)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._collector.environments.set_task(task)

    def warnings(self) -> list[str]:
        """Warnings of the environments since the last call."""
        return self._collector.environments.warnings()

    def state(self) -> list[dict[str, Any]]:
        """The state of every environment."""
        return self._collector.state()

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the indices of environments that could not."""
        return self._collector.restore(columns)

    def close(self) -> None:
        """Close the environments."""
        self._collector.environments.close()


class RemoteActorLearners:
    """Actor-learners in workers, each of which serves the requests for its environments one by one.

    make_environments: called in a worker with the indices of its environments. make_actor: called in a worker. Both
    travel by cloudpickle. like: the weights that will be loaded, by name.
    """

    def __init__(
        self,
        make_environments: Callable[[list[int]], Environments],
        make_actor: Callable[[], ActorLearner],
        explorer: Explorer,
        run_seed: int,
        like: Weights,
        parts: list[list[int]],
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        size, shapes = (
            weights_size(like),
            {name: (np.shape(value), np.asarray(value).dtype) for name, value in like.items()},
        )
        server = partial(GradientServer, make_actor, explorer, run_seed, shapes)
        backend, workers = options.backend, []
        for i, part in enumerate(parts):
            memory = backend.memory(len(part), tuple(backend.new_buffer(size) for _ in part))
            workers.append(backend.worker(i, part, memory, server))
        self._worker_of = {column: worker for worker in workers for column in worker.columns}
        self._shared = {
            column: weights_in(buffer, like)
            for worker in workers
            for column, buffer in zip(worker.columns, worker.memory.buffers, strict=True)
        }
        self._requested: dict[int, tuple[RolloutRequest, Weights]] = {}  # by environment, the oldest first
        self._gradients: dict[int, WorkerGradients] = {}
        self._supervisor = WorkerSupervisor(workers, make_environments, run_seed, options)
        self.spaces: Spaces = self._supervisor.ready.spaces

    def begin(self, request: RolloutRequest, weights: Weights) -> None:
        """Let its worker collect and differentiate a rollout with these weights."""
        self._requested[request.environment] = request, weights
        self._ask(request.environment)

    def finish(self, environment: int) -> WorkerGradients:
        """Wait for its gradients. A worker that fails is replaced, and starts its rollouts over with new episodes."""
        worker = self._worker_of[environment]
        while environment not in self._gradients:
            answer = self._supervisor.receive(worker)
            if isinstance(answer, Failure):
                self._supervisor.replace(worker, answer)
                for again in [other for other in self._requested if self._worker_of[other] is worker]:
                    self._ask(again)
                continue
            worker.failures = 0
            self._take(*answer)
        return self._gradients.pop(environment)

    def set_task(self, task: Any) -> None:
        """Send this task with the next rollout that each worker is asked for."""
        self._supervisor.set_task(task)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._supervisor.take_warnings()

    def state(self) -> list[dict[str, Any]]:
        """The state of every environment; only while none collects."""
        parts = self._supervisor.ask_all({worker.number: SaveState() for worker in self._supervisor.workers})
        return [column for part in parts for column in part]

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the indices of environments that could not."""
        workers = self._supervisor.workers
        requests = {worker.number: RestoreState([columns[c] for c in worker.columns]) for worker in workers}
        return [number for part in self._supervisor.ask_all(requests) for number in part]

    def close(self) -> None:
        """End the workers and free the memory they share."""
        self._supervisor.close()

    def _ask(self, environment: int) -> None:
        request, weights = self._requested[environment]
        for name, value in weights.items():
            self._shared[environment][name][...] = value
        worker = self._worker_of[environment]
        worker.ask(request, (worker.columns.index(environment),))

    def _take(self, environment: int, found: WorkerGradients) -> None:
        del self._requested[environment]
        shared = self._shared[environment]
        gradients = {name: shared[name].copy() for name in found.gradients}
        self._gradients[environment] = dataclasses.replace(found, gradients=gradients)


class GradientServer:
    """Serves rollout requests in a worker. Each environment's gradients are written to the arrays from which its
    weights are read. shapes: those of the weights that are loaded, with their types, by name."""

    def __init__(
        self,
        make_actor: Callable[[], ActorLearner],
        explorer: Explorer,
        run_seed: int,
        shapes: dict[str, tuple[tuple[int, ...], np.dtype]],
        environments: Environments,
        memory: SharedMemory,
        generation: int,
    ):
        self._actor = make_actor()
        self._collector = Collector(environments, self._actor, explorer, run_seed, memory.counter_array(), generation)
        columns = self._collector.columns.tolist()
        like = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        self._shared = {c: weights_in(buffer, like) for c, buffer in zip(columns, memory.buffers, strict=True)}
        self._size = weights_size(like)

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answer."""
        if isinstance(request, RolloutRequest):
            found = self._collect(request)
            place = self._collector.columns.tolist().index(request.environment)
            channel.send((request.environment, found), {place: self._size})
        elif isinstance(request, RestoreState):
            channel.send(self._collector.restore(request.state))
        else:
            channel.send(self._collector.state())

    def _collect(self, request: RolloutRequest) -> WorkerGradients:
        shared = self._shared[request.environment]
        weights = {name: value.copy() for name, value in shared.items()}
        found = _gradients(self._collector, self._actor, request, weights)
        for name, gradient in found.gradients.items():
            shared[name][...] = gradient
        return dataclasses.replace(found, gradients=dict.fromkeys(found.gradients, _SHARED))


def _gradients(collector: Collector, actor: ActorLearner, request: RolloutRequest, weights: Weights) -> WorkerGradients:
    """Collect a rollout of one environment with these weights, and differentiate it."""
    actor.load(weights, request.version)
    position = request.environment - int(collector.columns[0])
    fragment = StepsFragment(collector, (position,), request.steps, request.step, request.stride)
    return actor.gradients(collect(fragment, collector.environments).to_steps())


def _plain(found: WorkerGradients) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "episodes": plain_ends(found.episodes)}


def _worker_gradients(plain: dict[str, Any]) -> WorkerGradients:
    return WorkerGradients(**{**plain, "episodes": ends_of(plain["episodes"])})
