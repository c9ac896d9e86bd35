"""Collects in worker processes that act by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.data import Steps
from etude.base.errors import NetworkError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.acting import Free, MakeActing, Order, PortableActor, Restore, Save, weights_in
from etude.rollout.crew import Crew, PoolOptions, registered_environments, split_columns
from etude.rollout.flight import ChunkFlight, EpisodesFlight, Flight
from etude.rollout.process import Failure, Worker, new_buffer, share_memory
from etude.rollout.rows import Template
from etude.rollout.saved import Ahead, notes, pack, unpack
from etude.rollout.worker import Job


class Pool:
    """Collects steps in worker processes, each of which acts for its environments by itself. A `protocols.Rollout`.

    As long as no worker fails, any number of workers collects the same steps as `InProcess`, bit for bit.

    make_environments: called in a worker with the numbers of its environments. make_actor: called in a worker, and once
        here to see its weights. Both travel by cloudpickle.
    """

    def __init__(
        self,
        make_environments: Callable[[list[int]], Environments],
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        run_seed: int,
        environments: int,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        self.environments, self._overlap, self._judged = environments, options.overlap, options.judged
        self._make_environments, self._make_actor = make_environments, make_actor
        self._explorer, self._run_seed = explorer, run_seed
        like = make_actor().weights()
        parts = split_columns(environments, workers)
        crew = [Worker(i, part, share_memory(len(part), _two(options.buffer), like)) for i, part in enumerate(parts)]
        self._shared = [weights_in(worker.memory.weights, like) for worker in crew]
        self._staged: Weights = {}
        self._loaded: set[str] = set()
        self._version = 0
        self._templates: dict[int, Template] = {}
        self._flight: Flight | None = None
        self._ahead: Ahead | None = None
        self._cut: set[int] = set()  # the workers whose next steps do not continue what was returned
        self._crew = Crew(crew, self._job, options)
        self.spaces = self._crew.ready.spaces

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`."""
        n = self.environments if environments is None else environments
        collected = self._settle()
        if not isinstance(collected, Steps) or collected.shape != (steps, n):
            self._drop(collected)
            collected = self._finish(self._start(self._chunk(steps, step, n)))
        self._ahead = None
        if upcoming and self._overlap:
            self._flight = self._start(self._chunk(upcoming, step + len(collected), self.environments))
        return collected

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout` and `plans.whole_episodes`.

        Of a worker that fails, the episodes that had ended and been handed over are kept. Native simulators go on until
        all environments of a worker have ended an episode.
        """
        collected = self._settle()
        if not isinstance(collected, tuple):
            self._drop(collected)
            collected = self._finish(self._start(self._episodes(step)))
        self._ahead = None
        if ahead and self._overlap:
            self._flight = self._start(self._episodes(step + sum(len(part) for part in collected)))
        return collected

    def load(self, weights: Weights) -> None:
        """Act with these from the next chunk on. Copied at once: the caller may go on changing them."""
        known = self._shared[0]
        for name, value in weights.items():
            if name not in known:
                raise NetworkError(f"There is no weight named {name!r}; the actor has {', '.join(sorted(known))}.")
            if known[name].shape != np.shape(value):
                raise NetworkError(f"Weight {name!r} has shape {np.shape(value)}; the actor's has {known[name].shape}.")
        self._staged |= {name: np.array(value) for name, value in weights.items()}

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._crew.news()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment number, and what was collected ahead."""
        self._settle()
        parts = self._crew.ask_all({worker.number: Save() for worker in self._crew.workers})
        for number in self._cut:
            parts[number] = [column | {"restarted": True} for column in parts[number]]
        return pack([column for part in parts for column in part], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        self._settle()
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        self._cut.clear()
        parts = {worker.number: Restore([columns[c] for c in worker.columns]) for worker in self._crew.workers}
        return notes([number for part in self._crew.ask_all(parts) for number in part])

    def close(self) -> None:
        """End the workers and free the memory they share. May be called twice."""
        self._crew.close()

    def _job(self, worker: Worker) -> Job:
        serve = MakeActing(self._make_actor, self._explorer, self._run_seed, worker.generation, self._judged)
        new = worker.generation == 0
        return Job(self._make_environments, worker.columns, self._run_seed, new, registered_environments(), serve)

    def _put(self, weights: Weights) -> None:
        """Write weights where the workers read them; only while none of them works."""
        for shared in self._shared:
            for name, value in weights.items():
                shared[name][...] = value
        self._version += 1
        self._loaded.update(weights)

    def _settle(self) -> Ahead | None:
        """What was collected ahead, once it is complete."""
        if self._flight is not None:
            self._ahead = self._finish(self._flight)
            self._flight = None
        return self._ahead

    def _drop(self, ahead: Ahead | None) -> None:
        if ahead is None:
            return
        dropped = len(ahead) if isinstance(ahead, Steps) else sum(len(part) for part in ahead)
        self._crew.warnings.append(f"{dropped} steps collected ahead are dropped: a different chunk is wanted.")
        self._cut = {worker.number for worker in self._crew.workers}

    def _chunk(self, steps: int, step: int, n: int) -> ChunkFlight:
        return ChunkFlight(self._order(step, n), steps, n, self._crew.workers)

    def _episodes(self, step: int) -> EpisodesFlight:
        return EpisodesFlight(self._order(step, self.environments), self._crew.workers, self._crew.ready.native)

    def _order(self, step: int, stride: int) -> Order:
        """What all workers are told; they must be at rest: they get the weights that were loaded."""
        if self._staged:
            self._put(self._staged)
            self._staged = {}
        return Order(step, stride, self._version, tuple(sorted(self._loaded)))

    def _start(self, flight: Flight) -> Flight:
        for worker in flight.workers:
            worker.ask(flight.order(worker)._replace(cut=worker.number in self._cut))
            self._cut.discard(worker.number)
        return flight

    def _finish(self, flight: Flight) -> Any:
        while busy := [worker for worker in flight.workers if flight.going(worker)]:
            for worker, answer in self._crew.wait(busy):
                if isinstance(answer, Failure):
                    flight.lose(worker)
                    self._crew.replace(worker, answer)
                    worker.ask(flight.order(worker))
                    continue
                self._templates[worker.number] = answer.template or self._templates[worker.number]
                flight.take(worker, answer, self._templates[worker.number])
                if flight.going(worker):
                    worker.ask(Free())
        for worker in flight.workers:
            worker.failures = 0
        return flight.result()


def _two(size: int) -> tuple[Any, Any]:
    return new_buffer(size), new_buffer(size)
