"""Collects in worker processes that only step; acting is done here, for all environments at once.

For actors that cannot leave this process, such as networks that a user wrote in a framework. Workers pay off only where
environments step slower than a process wakes up; results do not depend on who steps them, so that the choice may depend
on timings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from etude.base.cores import usable_cores
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.spaces import ACTION_MASK, Spaces, zeros
from etude.base.trees import Tree
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import Collector
from etude.rollout.fragments import AnyFragment, Outcome, StepsFragment, WholeEpisodes
from etude.rollout.in_process import InProcess
from etude.rollout.pool.channel import new_buffer, share_memory
from etude.rollout.pool.process import ProcessWorker
from etude.rollout.pool.remote_environments import Interrupted, RemoteEnvironments, SteppingServer
from etude.rollout.pool.supervisor import PoolOptions, WorkerSupervisor, split_environments
from etude.rollout.rows import EndedEpisodes, Rows, joined
from etude.rollout.state import Ahead, answers, notes, pack, unpack

# Seconds of a time step for notifications, for all workers together, and in addition for each: benchmarks/stepping.py
# finds 0.19 ms and 0.03 ms on an idle virtual machine with two cores, which fall asleep; solo_speed.py, with PyTorch
# acting, 0.39 ms for two workers. If they are wrong, workers are left out that would have saved little.
OVERHEAD, OVERHEAD_PER_WORKER = 300e-6, 30e-6


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

    environments: how many there are, or the indices of those of this process.
    """

    def __init__(
        self,
        make_environments: Callable[[list[int]], Environments],
        actor: Actor,
        explorer: Explorer,
        run_seed: int,
        environments: int | range,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        columns = split_environments(environments, workers)
        self.environments: int = sum(map(len, columns))
        self._actor, self._first = actor, columns[0][0]
        middle = -(-workers // 2) if options.halves else workers
        numbers = range(middle), range(middle, workers)
        parts = [_workers(columns, part, options.buffer) for part in numbers if part]
        everyone = [worker for part in parts for worker in part]
        self._supervisor = WorkerSupervisor(everyone, make_environments, run_seed, options)
        self.spaces: Spaces = self._supervisor.ready.spaces
        remote = [RemoteEnvironments(self._supervisor, part) for part in parts]
        self._halves = [
            _Half(Collector(each, actor, explorer, run_seed, state_recorded=options.state_recorded), each)
            for each in remote
        ]
        self._ahead: Ahead | None = None  # what the rollout that was saved had collected ahead

    def collect(
        self, steps: int, step: int, environments: range | None = None, upcoming: int = 0, stride: int | None = None
    ) -> Steps:
        """`steps` time steps of the environments at these positions; see `protocols.Rollout`. Nothing runs ahead.

        stride: environment steps that the run takes in a time step, where other processes collect, too.
        """
        chosen = range(self.environments) if environments is None else environments
        columns = range(self._first + chosen.start, self._first + chosen.stop)
        ahead, self._ahead = self._ahead, None
        if answers(ahead, steps, columns):
            return ahead
        if ahead is not None:
            self.cut()
        stride = stride or len(chosen)
        if len(self._halves) > 1 and len(chosen) == self.environments:
            return self._join(steps, step, stride)
        fragments = []
        for half in self._halves:
            positions = tuple(i for i, column in enumerate(half.columns) if column in columns)
            if positions:
                fragments.append((half, StepsFragment(half.collector, positions, steps, step, stride)))
        self._collect(fragments)
        return joined([fragment.to_steps() for _, fragment in fragments])

    def collect_episodes(self, step: int, ahead: bool = False, stride: int | None = None) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`. Nothing runs ahead. stride: see
        `collect`."""
        waiting, self._ahead = self._ahead, None
        if isinstance(waiting, tuple):
            return waiting
        if waiting is not None:
            self.cut()
        parts = [(half, WholeEpisodes(half.collector, step, stride or self.environments)) for half in self._halves]
        self._collect(parts)
        return tuple(steps for _, part in parts for steps in part.to_steps())

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._actor.load(weights, version)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from the next step on."""
        self._supervisor.set_task(task)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._supervisor.take_warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index."""
        return pack([column for half in self._halves for column in half.state()], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        parts = [half.collector.restore([columns[c - self._first] for c in half.columns]) for half in self._halves]
        return notes([number for part in parts for number in part])

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._supervisor.close()

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        for half in self._halves:
            half.collector.cut()

    def _join(self, steps: int, step: int, stride: int) -> Steps:
        """The steps of both halves, which write into the same rows."""
        rows = Rows.allocate(self._halves[0].collector.template(), steps, self.environments)
        fragments, starts = [], []
        for half in self._halves:
            start, positions = half.columns.start - self._first, half.collector.everyone
            own = rows.between(slice(start, start + len(positions)))
            fragment = StepsFragment(half.collector, positions, steps, step, stride, lambda *_, own=own: own)
            fragments.append((half, fragment))
            starts.append((0, start))
        self._collect(fragments)
        parts = [fragment.to_steps() for _, fragment in fragments]
        ends = EndedEpisodes.join([EndedEpisodes.of_steps(part) for part in parts], starts)
        indices = np.arange(self._first, self._first + self.environments)
        return rows.to_steps(ends, indices, np.concatenate([part.restarted for part in parts]))

    def _collect(self, fragments: Sequence[tuple[_Half, AnyFragment]]) -> None:
        """While this process acts for one half, the workers of the other step."""
        going = [pair for pair in fragments if not pair[1].complete]
        for half, fragment in going:
            half.environments.begin(*fragment.act())
        while going:
            for half, fragment in going:
                if fragment.record(half.finish()):
                    half.environments.forget_failures()
                if not fragment.complete:
                    half.environments.begin(*fragment.act())
            going = [pair for pair in going if not pair[1].complete]


def _workers(columns: list[list[int]], numbers: range, buffer: int) -> list[ProcessWorker]:
    """Workers with these numbers, which share one board."""
    board, first = new_buffer(buffer * len(numbers)), columns[numbers.start][0]
    places = columns[numbers.stop - 1][-1] - first + 1
    workers = []
    for number in numbers:
        own = columns[number]
        server = partial(SteppingServer, own[0] - first, places)
        workers.append(ProcessWorker(number, own, share_memory(len(own), (board,)), server))
    return workers


def acting_in_process(
    make_environments: Callable[[list[int]], Environments],
    actor: Actor,
    explorer: Explorer,
    run_seed: int,
    environments: int,
    workers: int,
    options: PoolOptions,
) -> InProcess | LockstepPool:
    """A rollout for an actor that cannot leave this process, with workers that step if the options ask for them or they
    pay off."""
    remote = options.remote_environments
    if remote is None:  # timed with copies, as workers have them: the environment may be a user's own
        copied = cloudpickle.loads(cloudpickle.dumps(make_environments))
        remote = workers_pay_off(copied, environments, workers)
    if remote:
        return LockstepPool(make_environments, actor, explorer, run_seed, environments, workers, options)
    return InProcess(make_environments(list(range(environments))), actor, explorer, run_seed)


def workers_pay_off(
    make_environments: Callable[[list[int]], Environments], environments: int, workers: int, cores: int | None = None
) -> bool:
    """Whether a `LockstepPool` is expected to be quicker than `InProcess`; both collect the same.

    Makes environment 0 here, steps it for about 0.05 s and closes it; raises what that raises. cores: None for those
    that this process may use.
    """
    return seconds_saved(step_seconds(make_environments), environments, workers, cores or usable_cores()) > 0


def seconds_saved(step: float, environments: int, workers: int, cores: int) -> float:
    """Expected seconds that workers save in a time step of all environments, each of which takes `step` seconds."""
    busiest = -(-environments // min(workers, cores))
    return (environments - busiest) * step - OVERHEAD - OVERHEAD_PER_WORKER * workers


def step_seconds(make_environments: Callable[[list[int]], Environments], budget: float = 0.05) -> float:
    """Median seconds of a step of one environment with the first legal action, measured for `budget` seconds."""
    environments = make_environments([0])
    try:
        observation = environments.reset()
        taken: list[float] = []
        until = time.perf_counter() + budget
        while not taken or time.perf_counter() < until:
            action = _legal(environments.spaces, observation)
            began = time.perf_counter()
            observation = environments.step(action)[0]
            taken.append(time.perf_counter() - began)
        return float(np.median(taken))
    finally:
        environments.close()


def _legal(spaces: Spaces, observation: Tree) -> np.ndarray:
    action: Any = zeros(spaces.action, 1)
    if spaces.masked:
        action = observation[ACTION_MASK].argmax(-1).astype(action.dtype)
    return action
