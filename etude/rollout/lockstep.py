"""Collects in worker processes that only step; acting is done here, for all environments at once.

For actors that cannot leave this process, such as networks that a user wrote in a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.data import Steps
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.collector import Collector, Plan
from etude.rollout.crew import Crew, PoolOptions, registered_environments, split_columns
from etude.rollout.elsewhere import Interrupted, SteppedElsewhere
from etude.rollout.plans import chunk, whole_episodes
from etude.rollout.process import Worker, new_buffer, share_memory
from etude.rollout.recall import Actor
from etude.rollout.rows import Ends, Rows
from etude.rollout.saved import Ahead, notes, pack, unpack
from etude.rollout.stepping import MakeStepping
from etude.rollout.worker import Job


@dataclass(frozen=True)
class _Half:
    """All workers, or half of them: environments that are acted for in one batch."""

    collector: Collector
    stepped: SteppedElsewhere

    @property
    def columns(self) -> range:
        """The numbers of its environments."""
        columns = self.collector.columns
        return range(int(columns[0]), int(columns[-1]) + 1)

    def go_on(self, plan: Plan) -> None:
        """From what was begun to what is begun next. Raises StopIteration at the end of the plan."""
        outcome = self.stepped.finish()
        self.lose()
        action, at = plan.send(outcome)
        self.stepped.begin(action, at)

    def lose(self) -> None:
        """Take in that workers were replaced."""
        for position, observation, episode in self.stepped.take_lost():
            self.collector.lose(position, observation, episode)

    def state(self) -> list[dict[str, Any]]:
        """See `Collector.state`."""
        while True:
            try:
                return self.collector.state()
            except Interrupted:
                self.lose()


class LockstepPool:
    """Collects with environments in worker processes and an actor in this one. A `protocols.Rollout`.

    Where a worker has to be replaced, its open episodes are lost. What was being collected by `collect` is dropped for
    all environments of the batch, as all have as many rows; `collect_episodes` keeps all other episodes.
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
        self.environments, self._actor = environments, actor
        self._make_environments, self._run_seed = make_environments, run_seed
        self._servers: dict[int, MakeStepping] = {}
        columns = split_columns(environments, workers)
        middle = -(-workers // 2) if options.halves else workers
        numbers = range(middle), range(middle, workers)
        parts = [self._workers(columns, part, options.buffer) for part in numbers if part]
        self._crew = Crew([worker for part in parts for worker in part], self._job, options)
        self.spaces = self._crew.ready.spaces
        stepped = [SteppedElsewhere(self._crew, part) for part in parts]
        self._halves = [_Half(Collector(each, actor, explorer, run_seed), each) for each in stepped]
        self._ahead: Ahead | None = None

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`. Nothing runs ahead."""
        n = self.environments if environments is None else environments
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Steps) and ahead.shape == (steps, n):
            return ahead
        self._cut(ahead)
        halves = [half for half in self._halves if half.columns.start < n]
        if len(halves) == 1:
            return self._carry_out([chunk(halves[0].collector, steps, step, n, n)])[0]
        return self._join(halves, steps, step, n)

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout` and `plans.whole_episodes`. Nothing runs
        ahead."""
        waiting, self._ahead = self._ahead, None
        if isinstance(waiting, tuple):
            return waiting
        self._cut(waiting)
        plans = [whole_episodes(half.collector, step, self.environments) for half in self._halves]
        return tuple(steps for part in self._carry_out(plans) for steps in part)

    def load(self, weights: Weights) -> None:
        """Act with these from the next step on."""
        self._actor.load(weights)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._crew.news()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment number."""
        return pack([column for half in self._halves for column in half.state()], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        parts = [half.collector.restore([columns[c] for c in half.columns]) for half in self._halves]
        return notes([number for part in parts for number in part])

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._crew.close()

    def _workers(self, columns: list[list[int]], numbers: range, buffer: int) -> list[Worker]:
        """Workers with these numbers, which share one board."""
        board, first = new_buffer(buffer * len(numbers)), columns[numbers.start][0]
        places = columns[numbers.stop - 1][-1] - first + 1
        workers = []
        for number in numbers:
            own = columns[number]
            self._servers[number] = MakeStepping(own[0] - first, places)
            workers.append(Worker(number, own, share_memory(len(own), (board,), {})))
        return workers

    def _job(self, worker: Worker) -> Job:
        new = worker.generation == 0
        server = self._servers[worker.number]
        return Job(self._make_environments, worker.columns, self._run_seed, new, registered_environments(), server)

    def _cut(self, ahead: Ahead | None) -> None:
        if ahead is not None:
            for half in self._halves:
                half.collector.cut()

    def _join(self, halves: list[_Half], steps: int, step: int, n: int) -> Steps:
        """A chunk of several halves, which write into the same rows."""
        columns = [half.columns[: None if half.stepped.native else n - half.columns.start] for half in halves]
        rows = Rows.allocate(halves[0].collector.template(), steps, columns[-1].stop)
        plans = []
        for half, part in zip(halves, columns, strict=True):
            mine = rows.between(slice(part.start, part.stop))
            wanted = min(len(part), n - part.start)
            plans.append(chunk(half.collector, steps, step, wanted, n, lambda *_, mine=mine: mine))
        parts = self._carry_out(plans)
        ends = [Ends(part.final_index, part.final_observation, part.episodes) for part in parts]
        joined = Ends.join(ends, [(0, part.start) for part in columns])
        return rows.to_steps(joined, np.arange(n), np.concatenate([part.restarted for part in parts]))

    def _carry_out(self, plans: list[Plan]) -> list[Any]:
        """While this process acts for one half, the workers of the other step."""
        results: dict[int, Any] = {}
        going = list(enumerate(zip(self._halves, plans, strict=False)))
        while going:
            for each in list(going):
                i, (half, plan) = each
                try:
                    half.go_on(plan)
                except StopIteration as done:
                    results[i] = done.value
                    going.remove(each)
        return [results[i] for i in range(len(plans))]
