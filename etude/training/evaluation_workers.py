"""Evaluations beside training: worker processes play frozen weights in NumPy while the run goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etude.base.data import WorkerWarning
from etude.envs import make_environments
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.pool.acting import PortableActor
from etude.rollout.pool.channel import SharedMemory, WorkerChannel, share_memory
from etude.rollout.pool.handle import Failure
from etude.rollout.pool.process import ProcessWorker
from etude.rollout.pool.supervisor import PoolOptions, WorkerSupervisor, split_environments
from etude.training.evaluate import Evaluation, EvaluationRequest, play

OPTIONS = PoolOptions()


class PlayRequest(NamedTuple):
    """What a worker is to play: its environments' part of a request, with these weights."""

    request: EvaluationRequest
    columns: np.ndarray
    weights: Weights


class EvaluationWorkers:
    """Processes that play evaluations, one at a time. Results do not depend on how many they are, nor on when they
    play.

    make_actor: called in a worker, which loads the weights of each evaluation. env: as `Run` takes it. All of it
    travels by cloudpickle. environments: that are played side by side, split among the workers.
    """

    def __init__(
        self,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        env: Any,
        seed: int,
        environments: int,
        workers: int,
    ):
        server = functools.partial(EvaluationServer, make_actor, explorer, env)
        self._workers = [
            ProcessWorker(
                i, columns, share_memory(len(columns), ()), server, "Evaluation worker", "its episodes are played again"
            )
            for i, columns in enumerate(split_environments(environments, workers))
        ]
        make = functools.partial(make_environments, env, run_seed=seed)
        self._supervisor = WorkerSupervisor(self._workers, make, seed, OPTIONS)
        self._requests: dict[int, PlayRequest] = {}
        self._found: dict[int, Evaluation] = {}

    def start(self, request: EvaluationRequest, weights: Weights) -> None:
        """Begin to play, in the workers. request: with a seed; for the environments that the workers were made for."""
        self._found.clear()
        for worker in self._workers:
            self._requests[worker.number] = PlayRequest(request, np.array(worker.columns), weights)
            worker.ask(self._requests[worker.number])

    def result(self, stopped: Callable[[], bool]) -> Evaluation | None:
        """What was played since `start`, once it is complete; None where `stopped` says so before. A worker that died
        or hangs is replaced, and plays its part again. Raises what the environment raised."""
        while waiting := [worker for worker in self._workers if worker.number not in self._found]:
            for worker, answer in self._supervisor.wait(waiting, stopped):
                if isinstance(answer, Failure):
                    self._supervisor.replace(worker, answer)
                    worker.ask(self._requests[worker.number])
                else:
                    worker.failures, self._found[worker.number] = 0, answer
            if stopped():
                return None
        return Evaluation.joined(self._found[worker.number] for worker in self._workers)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return [str(text) for text in self._supervisor.take_warnings() if isinstance(text, WorkerWarning)]

    def close(self) -> None:
        """End the workers; what they play is lost. May be called twice."""
        self._supervisor.close()


class EvaluationServer:
    """Plays what is requested, in a worker. Every evaluation has new environments, as in the process that trains."""

    def __init__(
        self,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        env: Any,
        environments: Environments,
        memory: SharedMemory,
        generation: int,
    ):
        environments.close()
        self._actor, self._explorer, self._env = make_actor(), explorer, env
        self._counters = memory.counter_array()

    def serve(self, request: PlayRequest, channel: WorkerChannel) -> None:
        """Play, and send the `Evaluation`."""
        self._actor.load(request.weights)
        played = request.request._replace(env=self._env)
        channel.send(play(played, request.columns, self._actor, self._explorer, self._count_step))

    def _count_step(self) -> bool:
        """The parent sees by it that this process does not hang."""
        self._counters[0] += 1
        return False
