"""Asynchronous gradients: actor-learners, in this process or in workers, collect a rollout of one environment
each, with their own copies of the weights, and differentiate the losses there. Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
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
from etude.rollout.pool import SAVE_STATE, CollectingServer, MakeEnvironments, PoolOptions, RestoreState
from etude.rollout.state import ends_of, notes, pack, plain_ends, unpack
from etude.workers.channel import WorkerChannel, weights_in, weights_size
from etude.workers.process import Failure
from etude.workers.supervisor import Supervised, WorkerSupervisor, split_environments

_SHARED = np.empty(0, np.float32)  # stands for an array that lies in shared memory


class _ActorLearner(Actor, Protocol):
    """Acts, and differentiates the losses at what it collected."""

    def gradients(self, steps: Steps) -> WorkerGradients:
        """Gradients at the steps [T, 1] of one environment, with the weights that were loaded last."""


class _RolloutRequest(NamedTuple):
    """`steps` time steps of one environment. step: environment steps of the run so far; each time step advances it by
    `stride`. version: of the weights to collect with."""

    environment: int
    steps: int
    step: int
    stride: int
    version: PolicyVersion


class AsyncGradients(ABC):
    """The gradients of N environments, always in their order. A `protocols.Rollout` that returns `WorkerGradients`.

    An environment starts its next rollout, with the weights that were loaded last, when its gradients have been taken
    and applied. So all of them collect all the time, and all gradients but the first N are N - 1 updates old, whether
    the actor-learners are local or remote, and however fast they are.

    length: time steps of a rollout. A call for fewer steps counts some of the steps of a rollout; the gradients come
    with the last of them, and a call for more steps than are left of it returns fewer.
    """

    def __init__(self, spaces: Spaces, environments: int, length: int):
        self.spaces: Spaces = spaces
        self.environments: int = environments
        self._length = length
        self._weights: Weights = {}
        self._version = INITIAL_VERSION
        self._begun: set[int] = set()
        self._finished: dict[int, WorkerGradients] = {}  # those of `_begun` that are there
        self._turn = 0  # whose gradients come next
        self._counted: int | None = 0  # how many steps of its rollout have counted; None: as the steps of the run say

    @abstractmethod
    def _begin(self, request: _RolloutRequest, weights: Weights) -> None:
        """Let an environment collect and differentiate a rollout with these weights."""

    @abstractmethod
    def _wait(self, environment: int) -> None:
        """Until its gradients are among those that are finished."""

    @abstractmethod
    def _column_states(self) -> list[dict[str, Any]]:
        """The state of every environment; only while none collects."""

    @abstractmethod
    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[int]:
        """Continue from `_column_states`; returns the indices of environments that could not."""

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> WorkerGradients:
        """At most `steps` environment steps, all of one environment; see `protocols.Rollout`."""
        for environment in range(self.environments):
            if environment not in self._begun:
                request = _RolloutRequest(environment, self._length, step, self.environments, self._version)
                self._begin(request, self._weights)
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

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index, and the gradients that are not applied yet.
        Waits for all rollouts that have begun."""
        waiting = {}
        for i in sorted(self._begun):
            found = self._finish(i)
            waiting[str(i)] = {**dataclasses.asdict(found), "episodes": plain_ends(found.episodes)}
        turn = {} if self._counted is None else {"turn": self._turn, "counted": self._counted}
        return pack(self._column_states()) | {"worker_gradients": waiting} | turn

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from `state`; returns notes on episodes that could not be replayed."""
        for environment in sorted(self._begun):
            self._finish(environment)
        columns, _ = unpack(state, self.environments, self.spaces)
        waiting = state.get("worker_gradients", {})  # none if a rollout was given up
        saved_before_turns = "worker_gradients" in state and "turn" not in state
        self._turn, self._counted = state.get("turn", 0), None if saved_before_turns else state.get("counted", 0)
        self._finished = {
            int(i): WorkerGradients(**{**plain, "episodes": ends_of(plain["episodes"])}) for i, plain in waiting.items()
        }
        self._begun = set(self._finished)
        return notes(self._restore_columns(columns))

    def _finish(self, environment: int) -> WorkerGradients:
        self._wait(environment)
        return self._finished[environment]


class LocalActorLearners(AsyncGradients):
    """Actor-learners in this process: a rollout is collected when it is requested."""

    def __init__(
        self, environments: Environments, actor: _ActorLearner, explorer: Explorer, run_seed: int, length: int
    ):
        super().__init__(environments.spaces, len(environments.columns), length)
        self._collector, self._actor = Collector(environments, actor, explorer, run_seed), actor

    def _begin(self, request: _RolloutRequest, weights: Weights) -> None:
        self._finished[request.environment] = differentiated(self._collector, self._actor, request, weights)

    def _wait(self, environment: int) -> None:
        """They are there since it has begun."""

    def _column_states(self) -> list[dict[str, Any]]:
        return self._collector.state()

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[int]:
        return self._collector.restore(columns)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._collector.environments.set_task(task)

    def warnings(self) -> list[str]:
        """Warnings of the environments since the last call."""
        return self._collector.environments.warnings()

    def close(self) -> None:
        """Close the environments."""
        self._collector.environments.close()


class RemoteActorLearners(Supervised, AsyncGradients):
    """Actor-learners in workers, each of which serves the requests for its environments one by one.

    make_environments: called in a worker with the indices of its environments. make_actor: called in a worker. Both
    travel by cloudpickle. like: the weights that will be loaded, by name.
    """

    def __init__(
        self,
        make_environments: MakeEnvironments,
        make_actor: Callable[[], _ActorLearner],
        explorer: Explorer,
        run_seed: int,
        length: int,
        like: Weights,
        environments: int,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        backend, size = options.backend, weights_size(like)
        shapes = {name: (np.shape(value), np.asarray(value).dtype) for name, value in like.items()}
        server = partial(_GradientServer, shapes, make_actor, explorer, {}, make_environments, run_seed)
        parts = [
            backend.worker(i, part, server, tuple(backend.new_buffer(size) for _ in part))
            for i, part in enumerate(split_environments(environments, workers))
        ]
        self._worker_of = {column: worker for worker in parts for column in worker.columns}
        self._shared = {
            column: weights_in(buffer, like)
            for worker in parts
            for column, buffer in zip(worker.columns, worker.memory.buffers, strict=True)
        }
        self._requested: dict[int, tuple[_RolloutRequest, Weights]] = {}  # by environment, the oldest first
        self._supervisor = WorkerSupervisor(parts, options)
        super().__init__(self._supervisor.ready.spaces, environments, length)

    def _begin(self, request: _RolloutRequest, weights: Weights) -> None:
        self._requested[request.environment] = request, weights
        self._ask(request.environment)

    def _wait(self, environment: int) -> None:
        """A worker that fails is replaced, and starts its rollouts over with new episodes."""
        worker = self._worker_of[environment]
        while environment not in self._finished:
            answer = self._supervisor.receive(worker)
            if isinstance(answer, Failure):
                self._supervisor.replace(worker, answer)
                for again in [other for other in self._requested if self._worker_of[other] is worker]:
                    self._ask(again)
                continue
            worker.failures = 0
            other, found = answer
            del self._requested[other]
            gradients = {name: self._shared[other][name].copy() for name in found.gradients}
            self._finished[other] = dataclasses.replace(found, gradients=gradients)

    def _ask(self, environment: int) -> None:
        request, weights = self._requested[environment]
        for name, value in weights.items():
            self._shared[environment][name][...] = value
        worker = self._worker_of[environment]
        worker.ask(request, (worker.columns.index(environment),))

    def _column_states(self) -> list[dict[str, Any]]:
        return [column for part in self._ask_each(lambda worker: SAVE_STATE) for column in part]

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[int]:
        parts = self._ask_each(lambda worker: RestoreState([columns[column] for column in worker.columns]))
        return [number for part in parts for number in part]


class _GradientServer(CollectingServer):
    """Serves rollout requests in a worker. Each environment's gradients are written to the arrays from which its
    weights are read. shapes: those of the weights that are loaded, with their types, by name."""

    def __init__(self, shapes: dict[str, tuple[tuple[int, ...], np.dtype]], *made_from: Any):
        self._like = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        super().__init__(*made_from)

    def _begin(self) -> None:
        super()._begin()
        columns, buffers = self._collector.columns.tolist(), self._memory.buffers
        self._shared = {c: weights_in(buffer, self._like) for c, buffer in zip(columns, buffers, strict=True)}

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answer."""
        if isinstance(request, _RolloutRequest):
            shared = self._shared[request.environment]
            weights = {name: value.copy() for name, value in shared.items()}
            found = differentiated(self._collector, self._actor, request, weights)
            for name, gradient in found.gradients.items():
                shared[name][...] = gradient
            found = dataclasses.replace(found, gradients=dict.fromkeys(found.gradients, _SHARED))
            place = self._collector.columns.tolist().index(request.environment)
            channel.send((request.environment, found), {place: weights_size(self._like)})
        else:
            super().serve(request, channel)


def differentiated(
    collector: Collector, actor: _ActorLearner, request: _RolloutRequest, weights: Weights
) -> WorkerGradients:
    """Collect a rollout of one environment with these weights, and differentiate it."""
    actor.load(weights, request.version)
    position = request.environment - int(collector.columns[0])
    fragment = StepsFragment(collector, (position,), request.steps, request.step, request.stride)
    return actor.gradients(collect(fragment, collector.environments).to_steps())
