"""Who carries out the orders of `Turns`: this process, or workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.data import WorkerGradients
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.acting import Restore, Save, weights_in, weights_size
from etude.rollout.collector import Collector
from etude.rollout.contributing import ActorLearner, MakeContributing, Order, contribute
from etude.rollout.crew import Crew, PoolOptions, registered_environments
from etude.rollout.process import Failure, Worker, new_buffer, share_memory
from etude.rollout.worker import Job


class Here:
    """This process: an order is carried out as soon as it is given. `turns.Hands`."""

    def __init__(self, environments: Environments, actor: ActorLearner, explorer: Explorer, run_seed: int):
        self.spaces = environments.spaces
        self._collector, self._actor = Collector(environments, actor, explorer, run_seed), actor
        self._done: dict[int, WorkerGradients] = {}

    def begin(self, column: int, order: Order, weights: Weights) -> None:
        """See `Hands`."""
        self._done[column] = contribute(self._collector, self._actor, order, weights)

    def finish(self, column: int) -> WorkerGradients:
        """See `Hands`."""
        return self._done.pop(column)

    def warnings(self) -> list[str]:
        """See `protocols.Environments`."""
        return self._collector.environments.warnings()

    def state(self) -> list[dict[str, Any]]:
        """See `Hands`."""
        return self._collector.state()

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """See `Hands`."""
        return self._collector.restore(columns)

    def close(self) -> None:
        """Close the environments."""
        self._collector.environments.close()


class Elsewhere:
    """Worker processes, each of which carries out the orders for its environments one after the other. `turns.Hands`.

    make_environments: called in a worker with the numbers of its environments. make_actor: called in a worker. Both
    travel by cloudpickle. like: what will be loaded, by name.
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
        self._make_environments, self._make_actor = make_environments, make_actor
        self._explorer, self._run_seed = explorer, run_seed
        self._like = {name: (np.shape(value), np.asarray(value).dtype) for name, value in like.items()}
        size = weights_size(like)
        crew = [
            Worker(i, part, share_memory(len(part), tuple(new_buffer(size) for _ in part), {}))
            for i, part in enumerate(parts)
        ]
        self._of = {column: worker for worker in crew for column in worker.columns}
        self._shared = {
            column: weights_in(buffer, like)
            for worker in crew
            for column, buffer in zip(worker.columns, worker.memory.buffers, strict=True)
        }
        self._ordered: dict[int, tuple[Order, Weights]] = {}  # and not answered, the oldest first
        self._done: dict[int, WorkerGradients] = {}
        self._crew = Crew(crew, self._job, options)
        self.spaces = self._crew.ready.spaces

    def begin(self, column: int, order: Order, weights: Weights) -> None:
        """See `Hands`."""
        self._ordered[column] = order._replace(position=column - self._of[column].columns[0]), weights
        self._ask(column)

    def finish(self, column: int) -> WorkerGradients:
        """See `Hands`. A worker that fails is replaced, and begins what it was at with new episodes."""
        worker = self._of[column]
        while column not in self._done:
            answer = self._crew.hear(worker)
            if isinstance(answer, Failure):
                self._crew.replace(worker, answer)
                for again in [other for other in self._ordered if self._of[other] is worker]:
                    self._ask(again)
                continue
            worker.failures = 0
            position, found = answer
            self._take(worker.columns[position], found)
        return self._done.pop(column)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._crew.news()

    def state(self) -> list[dict[str, Any]]:
        """See `Hands`."""
        parts = self._crew.ask_all({worker.number: Save() for worker in self._crew.workers})
        return [column for part in parts for column in part]

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """See `Hands`."""
        parts = {worker.number: Restore([columns[c] for c in worker.columns]) for worker in self._crew.workers}
        return [number for part in self._crew.ask_all(parts) for number in part]

    def close(self) -> None:
        """End the workers and free the memory they share."""
        self._crew.close()

    def _job(self, worker: Worker) -> Job:
        serve = MakeContributing(self._make_actor, self._explorer, self._run_seed, worker.generation, self._like)
        new = worker.generation == 0
        return Job(self._make_environments, worker.columns, self._run_seed, new, registered_environments(), serve)

    def _ask(self, column: int) -> None:
        order, weights = self._ordered[column]
        for name, value in weights.items():
            self._shared[column][name][...] = value
        self._of[column].ask(order)

    def _take(self, column: int, found: WorkerGradients) -> None:
        del self._ordered[column]
        shared = self._shared[column]
        self._done[column] = dataclasses.replace(
            found, gradients={name: shared[name].copy() for name in found.gradients}
        )
