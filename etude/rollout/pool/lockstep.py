"""Collects in worker processes that only step; acting is done here, for all environments at once.

For actors that cannot leave this process, such as networks that a user wrote in a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from etude.base.data import Steps
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import Collector
from etude.rollout.fragments import Outcome, Steppable, StepsFragment, WholeEpisodes
from etude.rollout.pool.channel import new_buffer, share_memory
from etude.rollout.pool.process import Worker
from etude.rollout.pool.remote_environments import Interrupted, RemoteEnvironments, SteppingServer
from etude.rollout.pool.supervisor import PoolOptions, WorkerSupervisor, split_environments
from etude.rollout.rows import EndedEpisodes, Rows
from etude.rollout.state import Ahead, notes, pack, unpack


@dataclass(frozen=True)
class _Half:
    """All workers, or half of them: environments that are acted for in one batch."""

    collector: Collector
    environments: RemoteEnvironments

    @property
    def columns(self) -> range:
        """The indices of its environments."""
        columns = self.collector.columns
        return range(int(columns[0]), int(columns[-1]) + 1)

    def finish(self) -> Outcome:
        """The outcome of the step that was begun."""
        outcome = self.environments.finish()
        self.lose()
        return outcome

    def lose(self) -> None:
        """Take over the new episodes of workers that were replaced."""
        for position, observation, episode in self.environments.take_lost():
            self.collector.lose(position, observation, episode)

    def state(self) -> list[dict[str, Any]]:
        """The state of the collector, once no worker fails."""
        while True:
            try:
                return self.collector.state()
            except Interrupted:
                self.lose()


class LockstepPool:
    """Collects with environments in worker processes and an actor in this one. A `protocols.Rollout`.

    If a worker is replaced, its open episodes are lost. `collect` then starts over for all environments of the batch,
    because all have the same number of rows; `collect_episodes` keeps all other episodes.
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
        columns = split_environments(environments, workers)
        middle = -(-workers // 2) if options.halves else workers
        numbers = range(middle), range(middle, workers)
        parts = [_workers(columns, part, options.buffer) for part in numbers if part]
        everyone = [worker for part in parts for worker in part]
        self._supervisor = WorkerSupervisor(everyone, make_environments, run_seed, options)
        self.spaces = self._supervisor.ready.spaces
        remote = [RemoteEnvironments(self._supervisor, part) for part in parts]
        self._halves = [_Half(Collector(each, actor, explorer, run_seed), each) for each in remote]
        self._ahead: Ahead | None = None  # what the rollout that was saved had collected ahead

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`. Nothing runs ahead."""
        n = self.environments if environments is None else environments
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Steps) and ahead.shape == (steps, n):
            return ahead
        self._cut(ahead)
        halves = [half for half in self._halves if half.columns.start < n]
        if len(halves) > 1:
            return self._join(halves, steps, step, n)
        fragment = StepsFragment(halves[0].collector, tuple(range(n)), steps, step, n)
        self._collect([fragment])
        return fragment.to_steps()

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`. Nothing runs ahead."""
        waiting, self._ahead = self._ahead, None
        if isinstance(waiting, tuple):
            return waiting
        self._cut(waiting)
        parts = [WholeEpisodes(half.collector, step, self.environments) for half in self._halves]
        self._collect(parts)
        return tuple(steps for part in parts for steps in part.to_steps())

    def load(self, weights: Weights) -> None:
        """Act with these from the next step on."""
        self._actor.load(weights)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._supervisor.take_warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index."""
        return pack([column for half in self._halves for column in half.state()], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        parts = [half.collector.restore([columns[c] for c in half.columns]) for half in self._halves]
        return notes([number for part in parts for number in part])

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._supervisor.close()

    def _cut(self, ahead: Ahead | None) -> None:
        if ahead is not None:
            for half in self._halves:
                half.collector.cut()

    def _join(self, halves: list[_Half], steps: int, step: int, n: int) -> Steps:
        """The steps of several halves, which write into the same rows."""
        columns = [half.columns[: None if half.environments.native else n - half.columns.start] for half in halves]
        rows = Rows.allocate(halves[0].collector.template(), steps, columns[-1].stop)
        fragments = []
        for half, part in zip(halves, columns, strict=True):
            own = rows.between(slice(part.start, part.stop))
            positions = tuple(range(min(len(part), n - part.start)))
            fragments.append(StepsFragment(half.collector, positions, steps, step, n, lambda *_, own=own: own))
        self._collect(fragments)
        parts = [fragment.to_steps() for fragment in fragments]
        ends = EndedEpisodes.join(
            [EndedEpisodes.of_steps(part) for part in parts], [(0, part.start) for part in columns]
        )
        return rows.to_steps(ends, np.arange(n), np.concatenate([part.restarted for part in parts]))

    def _collect(self, fragments: Sequence[Steppable]) -> None:
        """While this process acts for one half, the workers of the other step."""
        going = [pair for pair in zip(self._halves, fragments, strict=False) if not pair[1].complete]
        for half, fragment in going:
            half.environments.begin(*fragment.act())
        while going:
            for half, fragment in going:
                fragment.record(half.finish())
                if not fragment.complete:
                    half.environments.begin(*fragment.act())
            going = [pair for pair in going if not pair[1].complete]


def _workers(columns: list[list[int]], numbers: range, buffer: int) -> list[Worker]:
    """Workers with these numbers, which share one board."""
    board, first = new_buffer(buffer * len(numbers)), columns[numbers.start][0]
    places = columns[numbers.stop - 1][-1] - first + 1
    workers = []
    for number in numbers:
        own = columns[number]
        server = partial(SteppingServer, own[0] - first, places)
        workers.append(Worker(number, own, share_memory(len(own), (board,)), server))
    return workers
