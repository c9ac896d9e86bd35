"""Collects in worker processes that only step; acting is done here, for all environments at once.

For actors that cannot leave this process, such as networks that a user wrote in a framework. Every time step waits for
every worker, so it pays only where a step of an environment takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etude import trees
from etude.data import Steps
from etude.protocols import Environments, Explorer
from etude.rollout.collector import Actor
from etude.rollout.crew import Crew, PoolOptions, registered_environments, split_columns
from etude.rollout.in_process import InProcess
from etude.rollout.process import Failure, Worker, share_memory
from etude.rollout.worker import Channel, Job, Memory, counters_of
from etude.trees import Tree


class Reset(NamedTuple):
    """`Environments.reset`."""


class Step(NamedTuple):
    """`Environments.step`."""

    action: np.ndarray


class Save(NamedTuple):
    """`Environments.state`."""


class Restore(NamedTuple):
    """`Environments.restore`."""

    state: list[dict]


class Stepping:
    """Serves a parent that acts."""

    def __init__(self, environments: Environments, memory: Memory):
        self._environments, self._counters = environments, counters_of(memory)
        self._begun = False  # the first reset starts the episodes that the counters say already

    def serve(self, request: Any, channel: Channel) -> None:
        """Do what was asked and send the answer."""
        environments = self._environments
        if isinstance(request, Step):
            answer: Any = environments.step(request.action)
            self._counters[[1 + i for i in answer[-1]]] += 1
        elif isinstance(request, Reset):
            answer = environments.reset()
            self._counters[1:] += self._begun
            self._begun = True
        elif isinstance(request, Restore):
            answer = environments.restore(request.state)
            self._counters[1:] = [saved.get("episode", 0) for saved in request.state]
            self._counters[[1 + i for i in answer[1]]] += 1
            self._begun = True
        else:
            answer = environments.state()
        self._counters[0] += 1
        channel.send(answer)


class Interrupted(Exception):
    """Workers were replaced, so that what was being collected is no whole chunk."""


class LockstepEnvironments:
    """Environments in worker processes, stepped together. `protocols.Environments`.

    `step` and `state` raise Interrupted where a worker had to be replaced; `reset` is what must come next.
    """

    def __init__(self, make_environments: Any, run_seed: int, environments: int, workers: int, options: PoolOptions):
        self._make_environments, self._run_seed = make_environments, run_seed
        parts = split_columns(environments, workers)
        crew = [Worker(i, part, share_memory(len(part), 1, {})) for i, part in enumerate(parts)]
        self.crew = Crew(crew, self._job, options)
        self.spaces, self.native = self.crew.ready
        self.columns = np.arange(environments)

    def _job(self, worker: Worker) -> Job:
        new = worker.generation == 0
        return Job(self._make_environments, worker.columns, self._run_seed, new, registered_environments(), Stepping)

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""
        observations = self.crew.ask_all({worker.number: Reset() for worker in self.crew.workers})
        return trees.concatenate(observations)

    def step(self, action: np.ndarray) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Tree]]:
        """Step the first len(action) environments."""
        busy = [worker for worker in self.crew.workers if worker.columns[0] < len(action)]
        parts = {worker.number: Step(action[worker.columns[0] : worker.columns[-1] + 1]) for worker in busy}
        answers = self._ask(parts)
        final = {}
        for worker, (*_, ended) in zip(busy, answers, strict=True):
            for i, observation in ended.items():
                final[worker.columns[i]] = observation
        observation, *arrays = (list(values) for values in zip(*(answer[:4] for answer in answers), strict=True))
        reward, terminated, truncated = (np.concatenate(values) for values in arrays)
        return trees.concatenate(observation), reward, terminated, truncated, final

    def state(self) -> list[dict]:
        """The open episodes."""
        return [saved for part in self._ask({w.number: Save() for w in self.crew.workers}) for saved in part]

    def restore(self, state: list[dict]) -> tuple[Tree, list[int]]:
        """Replay the open episodes."""
        workers = self.crew.workers
        answers = self.crew.ask_all({w.number: Restore([state[c] for c in w.columns]) for w in workers})
        lost: list[int] = []
        for worker, (_, positions) in zip(workers, answers, strict=True):
            lost.extend(worker.columns[i] for i in positions)
        return trees.concatenate([observation for observation, _ in answers]), lost

    def episodes(self) -> np.ndarray:
        """The numbers of the open episodes, [N]."""
        return np.concatenate([worker.counters[1:] for worker in self.crew.workers])

    def close(self) -> None:
        """End the workers. May be called twice."""
        self.crew.close()

    def _ask(self, requests: dict[int, Any]) -> list[Any]:
        answers = self.crew.ask_all(requests, again=False)
        if any(isinstance(answer, Failure) for answer in answers):
            raise Interrupted
        return answers


class LockstepPool:
    """Collects with environments in worker processes and an actor in this one. A `protocols.Rollout`.

    Where a worker has to be replaced, what was being collected is dropped, and every environment starts a new episode.
    """

    def __init__(
        self,
        make_environments: Callable[[list[int]], Environments],
        actor: Actor,
        explorer: Explorer,
        run_seed: int,
        environments: int,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        self._stepped = LockstepEnvironments(make_environments, run_seed, environments, workers, options)
        self._rollout = InProcess(self._stepped, actor, explorer, run_seed)
        self.spaces, self.environments = self._rollout.spaces, environments
        self.load, self.restore, self.close = self._rollout.load, self._rollout.restore, self._rollout.close

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`. Nothing runs ahead."""
        return self._again_if_interrupted(lambda: self._rollout.collect(steps, step, environments))

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment number."""
        return self._again_if_interrupted(self._rollout.state)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        told, self._stepped.crew.warnings = self._stepped.crew.warnings, []
        return told

    def _again_if_interrupted(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except Interrupted:
                self._rollout.abandon(self._stepped.reset(), self._stepped.episodes())
