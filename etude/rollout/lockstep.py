"""Collects with environments in worker processes that only step, and an actor in this one, which acts for all of them
at once: both ends.

For actors that cannot leave this process, such as networks that a user wrote in a framework. Workers pay off only where
environments step slower than a process wakes up; results do not depend on who steps them, so that the choice may depend
on timings. Actions and outcomes go through shared memory. At every step each side notifies the other; see
`NotificationPipe`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from etude.base import trees
from etude.base.cores import usable_cores
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, zeros
from etude.base.trees import Tree
from etude.protocols import Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import Collector, Rows, ended_in, joined, joined_ends
from etude.rollout.fragments import LOST, InProcess, Outcome, StepsFragment, StepsRollout, WholeEpisodes
from etude.rollout.pool import SAVE_STATE, EnvironmentServer, MakeEnvironments, PoolOptions, RestoreState
from etude.rollout.state import notes
from etude.workers.channel import STEP, Carver, WorkerChannel
from etude.workers.process import Failure, ProcessBackend, ProcessWorker
from etude.workers.supervisor import Supervised, WorkerSupervisor, split_environments

# Seconds of a time step for notifications, for all workers together, and in addition for each: benchmarks/stepping.py
# finds 0.19 ms and 0.03 ms on an idle virtual machine with two cores, which fall asleep; solo_speed.py, with PyTorch
# acting, 0.39 ms for two workers. If they are wrong, workers are left out that would have saved little.
OVERHEAD, OVERHEAD_PER_WORKER = 300e-6, 30e-6


class Board:
    """The actions and outcomes of one time step of N environments, in a buffer. The same arguments give the same layout
    in every process.

    like: environments such as these. action: [0, ...] the shape and type of actions.
    """

    def __init__(self, buffer: Any, like: Any, action: np.ndarray, environments: int):
        carve, n = Carver(buffer), environments
        none = zeros(like.spaces.observation, 0)
        self.observation: Tree = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), none)
        self.final: Tree = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), none)
        self.reward: np.ndarray = carve((n, *like.reward_shape), np.dtype(np.float32))
        self.scores: np.ndarray = carve((n,), np.dtype(np.float32))
        self.terminated: np.ndarray = carve((n,), np.dtype(bool))
        self.truncated: np.ndarray = carve((n,), np.dtype(bool))
        self.action: np.ndarray = carve((n, *action.shape[1:]), action.dtype)
        self.info: np.ndarray = carve((n, len(like.info_names)), np.dtype(np.float32))

    def takes(self, action: np.ndarray) -> bool:
        """Whether there is room for actions of this kind."""
        return action.dtype == self.action.dtype and action.shape[1:] == self.action.shape[1:]

    def write(self, places: slice | np.ndarray, outcome: Outcome) -> None:
        """What `Environments.step` returned for the environments at these places."""
        observation, self.reward[places], self.terminated[places], self.truncated[places], final = outcome
        trees.put(self.observation, places, observation)
        if final:
            at = np.arange(len(self.reward))[places]
            for i, last in final.items():
                trees.put(self.final, at[i], last)

    def read(self, places: slice | np.ndarray) -> Outcome:
        """What was written, in arrays of its own."""
        observation = trees.map(lambda leaf: leaf[places].copy(), self.observation)
        terminated, truncated = self.terminated[places].copy(), self.truncated[places].copy()
        final: dict[int, Tree] = {}
        if terminated.any() or truncated.any():
            at = np.arange(len(self.reward))[places]
            for i in np.flatnonzero(terminated | truncated).tolist():
                final[i] = trees.map(lambda leaf, place=at[i]: leaf[place].copy(), self.final)
        return observation, self.reward[places].copy(), terminated, truncated, final


def as_places(positions: tuple[int, ...]) -> slice | np.ndarray:
    """Positions in ascending order as an index; a slice, which is quicker, where they leave nothing out."""
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(positions[0], positions[-1] + 1)
    return np.array(positions)


# -- in the worker -----------------------------------------------------------------------------------------------------


class _StepPositions(NamedTuple):
    """Step these environments of a worker, by position, now and at every notification."""

    positions: tuple[int, ...]
    action: np.ndarray  # [0, ...] shape and type of actions


_RESET_ALL = "reset"  # a request: `Environments.reset`


class _SteppingServer(EnvironmentServer):
    """Steps environments for a parent that acts: actions come and outcomes go through a board in shared memory. The
    environments have the places from `first` on, of `places` on the board."""

    def __init__(self, first: int, places: int, *made_from: Any):
        self._first, self._places_in_all = first, places
        super().__init__(*made_from)

    def _begin(self) -> None:
        self._begun = False  # the counters already hold the episodes that the first reset starts
        buffer, places = self._memory.buffers[0], self._places_in_all
        try:
            Board(buffer, self._environments, zeros(self._environments.spaces.action, 0), places)
        except TypeError:  # an array does not fit in the buffer
            raise ConfigError(
                f"One time step of {places} environments does not fit in the pool's buffer of {len(buffer)} bytes. "
                "Take fewer environments."
            ) from None

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answer."""
        environments = self._environments
        if isinstance(request, _StepPositions):
            positions = request.positions
            self._board = Board(self._memory.buffers[0], environments, request.action, self._places_in_all)
            self._places, self._positions = as_places(tuple(self._first + i for i in positions)), positions
            self._at = None if positions == tuple(range(len(positions))) else positions
        if request == STEP or isinstance(request, _StepPositions):
            self._step()
            channel.send_step()
            return
        if request == _RESET_ALL:
            answer: Any = environments.reset()
            self._counters[1:] += self._begun
            self._begun = True
        elif isinstance(request, RestoreState):
            answer = environments.restore(request.state)
            self._counters[1:] = [saved.get("episode", 0) for saved in request.state]
            self._counters[[1 + i for i in answer[1]]] += 1
            self._begun = True
        else:
            answer = environments.state()
        self._counters[0] += 1
        channel.send(answer)

    def _step(self) -> None:
        environments, board = self._environments, self._board
        outcome = environments.step(board.action[self._places].copy(), self._at)
        board.write(self._places, outcome)
        board.scores[self._places] = environments.scores
        if environments.info_names:
            board.info[self._places] = environments.info
        for i in outcome[-1]:
            self._counters[1 + self._positions[i]] += 1
        self._counters[0] += 1


# -- in the parent -----------------------------------------------------------------------------------------------------


class _Interrupted(Exception):
    """A worker was replaced; see `_RemoteEnvironments.take_lost`."""


class _RemoteEnvironments(Supervised):
    """Environments in worker processes, stepped together. `protocols.Environments`.

    A step may be taken in two parts, `begin` and `finish`. If a worker was replaced, its open episodes are lost:
    `finish` returns LOST in the place of final observations, and `state` raises _Interrupted.
    """

    def __init__(self, supervisor: WorkerSupervisor, workers: list[ProcessWorker]):
        self._supervisor, self._workers = supervisor, workers
        self.spaces, self.native, self.reward_shape, self.info_names = supervisor.ready
        self.scores: np.ndarray = np.empty(0, np.float32)
        self.info: np.ndarray = np.empty((0, len(self.info_names)), np.float32)
        self._first = workers[0].columns[0]
        self.columns: np.ndarray = np.arange(self._first, workers[-1].columns[-1] + 1)
        self._board: Board
        self._at: tuple[int, ...] | None = None
        self._positions: tuple[int, ...] = ()  # that the workers were last asked to step
        self._busy: list[ProcessWorker] = []
        self._lost: list[tuple[int, Tree, int]] = []

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from the next step on."""
        for worker in self._workers:
            worker.task = task

    def begin(self, action: np.ndarray, at: tuple[int, ...] | None) -> None:
        """Let the workers step the first len(action) environments, or those at these positions."""
        if at is not self._at or len(action) != len(self._positions) or not self._board.takes(action):
            self._at, self._positions = at, tuple(range(len(action))) if at is None else at
            self._places = as_places(self._positions)
            like = action[:0].copy()
            self._board = Board(self._workers[0].memory.buffers[0], self, like, len(self.columns))
            self._board.action[self._places] = action
            self._busy = []
            for worker in self._workers:
                mine = self._of(worker)
                stepped = tuple(i - mine.start for i in self._positions if i in mine)
                if stepped:
                    worker.ask(_StepPositions(stepped, like))
                    self._busy.append(worker)
            return
        self._board.action[self._places] = action
        for worker in self._busy:
            worker.ask_step()

    def finish(self) -> Outcome:
        """Wait for the outcome of the step that was begun."""
        failed: dict[int, Failure] = {}
        for worker in reversed(self._busy):  # the one that was asked last: to be woken once is enough
            answer = self._supervisor.receive(worker)
            if isinstance(answer, Failure):
                failed[worker.number] = answer
        outcome, self.scores = self._board.read(self._places), self._board.scores[self._places].copy()
        if self.info_names:
            self.info = self._board.info[self._places].copy()
        return self._without(failed, outcome) if failed else outcome

    def forget_failures(self) -> None:
        """What was asked for is there: failures from now on are no more in a row with those before."""
        for worker in self._workers:
            worker.failures = 0

    def take_lost(self) -> list[tuple[int, Tree, int]]:
        """Environments that began a new episode because their worker was replaced: position, observation, episode."""
        lost, self._lost = self._lost, []
        return lost

    def step(self, action: np.ndarray, at: Sequence[int] | None = None) -> Any:
        """Step and wait for the outcome; see `protocols.Environments`."""
        self.begin(action, None if at is None else tuple(at))
        return self.finish()

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""
        return trees.concatenate(self._supervisor.ask_all({worker.number: _RESET_ALL for worker in self._workers}))

    def state(self) -> list[dict[str, Any]]:
        """The open episodes."""
        answers = self._supervisor.ask_all({worker.number: SAVE_STATE for worker in self._workers}, again=False)
        failed = [worker for worker, answer in zip(self._workers, answers, strict=True) if isinstance(answer, Failure)]
        for worker in failed:
            self._begin_again(worker)
        if failed:
            raise _Interrupted
        return [saved for part in answers for saved in part]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Replay the open episodes."""
        requests = {worker.number: RestoreState([state[i] for i in self._of(worker)]) for worker in self._workers}
        answers = self._supervisor.ask_all(requests)
        lost = [self._of(worker)[i] for worker, (_, lost) in zip(self._workers, answers, strict=True) for i in lost]
        return trees.concatenate([observation for observation, _ in answers]), lost

    def _of(self, worker: ProcessWorker) -> range:
        """The positions of a worker's environments."""
        return range(worker.columns[0] - self._first, worker.columns[-1] - self._first + 1)

    def _without(self, failed: dict[int, Failure], outcome: Outcome) -> Outcome:
        """Replace workers, and the outcomes that they owe by the first observations of new episodes."""
        stepped = self._positions
        for number, failure in failed.items():
            worker = self._supervisor.workers[number]
            self._supervisor.replace(worker, failure)
            self._begin_again(worker)
        observation, reward, terminated, truncated, final = outcome
        for position, first, _ in self._lost:
            if position in stepped:
                i = stepped.index(position)
                trees.put(observation, i, first)
                reward[i], terminated[i], truncated[i], final[i] = 0.0, False, False, LOST
                self.scores[i] = 0.0
                if self.info_names:
                    self.info[i] = np.nan
        return observation, reward, terminated, truncated, final

    def _begin_again(self, worker: ProcessWorker) -> None:
        """Let a new worker begin its episodes. It has not been asked to step anything."""
        (observation,) = self._supervisor.ask_all({worker.number: _RESET_ALL})
        for i, position in enumerate(self._of(worker)):
            self._lost.append((position, trees.rows(observation, i), int(worker.counters[1 + i])))
        self._positions = ()


class LockstepPool(Supervised, StepsRollout):
    """Collects with environments in worker processes and an actor in this one. A `protocols.Rollout`. Nothing runs
    ahead.

    If a worker is replaced, its open episodes are lost. `collect` then starts over for all environments of the batch,
    because all have the same number of rows; `collect_episodes` keeps all other episodes.

    environments: how many there are, or the indices of those of this process.
    """

    def __init__(
        self,
        make_environments: MakeEnvironments,
        actor: Actor,
        explorer: Explorer,
        run_seed: int,
        environments: int | range,
        workers: int,
        options: PoolOptions = PoolOptions(),  # noqa: B008  (frozen)
    ):
        columns, backend = split_environments(environments, workers), ProcessBackend()
        self._actor = actor
        middle = -(-workers // 2) if options.halves else workers
        parts = []  # the workers of each half, or all of them, which share one board
        for numbers in (range(middle), range(middle, workers)):
            if not numbers:
                continue
            first, board = columns[numbers[0]][0], backend.new_buffer(options.buffer * len(numbers))
            places = columns[numbers[-1]][-1] - first + 1
            part: list[Any] = []
            for i in numbers:
                made = partial(_SteppingServer, columns[i][0] - first, places, make_environments, run_seed)
                part.append(backend.worker(i, columns[i], made, (board,)))
            parts.append(part)
        self._supervisor = WorkerSupervisor([worker for part in parts for worker in part], options)
        super().__init__(self._supervisor.ready.spaces, [index for part in columns for index in part])
        remote = [_RemoteEnvironments(self._supervisor, part) for part in parts]
        # Those whose environments are acted for in one batch: all, or half of them.
        self._halves = [
            (each, Collector(each, actor, explorer, run_seed, state_recorded=options.state_recorded)) for each in remote
        ]

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        rows, fragments, starts, chosen = None, [], [], set(positions)
        if len(self._halves) > 1 and len(chosen) == self.environments:  # both halves write into the same rows
            rows = Rows.allocate(self._halves[0][1].template, steps, self.environments)
        for remote, collector in self._halves:
            start = int(collector.columns[0]) - self._columns[0]
            own = tuple(i for i in collector.everyone if start + i in chosen)
            if own:
                part = None if rows is None else rows.between(slice(start, start + len(own)))
                make_rows: Any = Rows.allocate if part is None else lambda *_, part=part: part
                fragments.append((remote, StepsFragment(collector, own, steps, step, stride, make_rows)))
                starts.append((0, start))
        self._step(fragments)
        parts = [fragment.to_steps() for _, fragment in fragments]
        if rows is None:
            return joined(parts)
        ends = joined_ends([ended_in(part) for part in parts], starts)
        return rows.to_steps(ends, np.array(self._columns), np.concatenate([part.restarted for part in parts]))

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        parts = [(remote, WholeEpisodes(collector, step, stride)) for remote, collector in self._halves]
        self._step(parts)
        return tuple(steps for _, part in parts for steps in part.to_steps())

    def _step(self, fragments: Sequence[tuple[_RemoteEnvironments, Any]]) -> None:
        """Complete these fragments. While this process acts for one half, the workers of the other step."""
        going = [pair for pair in fragments if not pair[1].complete]
        for remote, fragment in going:
            remote.begin(*fragment.act())
        while going:
            for remote, fragment in going:
                outcome = remote.finish()
                self._lose()
                if fragment.record(outcome):
                    remote.forget_failures()
                if not fragment.complete:
                    remote.begin(*fragment.act())
            going = [pair for pair in going if not pair[1].complete]

    def _lose(self) -> None:
        """Take over the new episodes of workers that were replaced."""
        for remote, collector in self._halves:
            for position, observation, episode in remote.take_lost():
                collector.lose(position, observation, episode)

    def _column_states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _, collector in self._halves:
            while True:
                try:
                    found += collector.state()
                    break
                except _Interrupted:
                    self._lose()
        return found

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        states = dict(zip(self._columns, columns, strict=True))
        parts = [collector.restore([states[c] for c in collector.columns.tolist()]) for _, collector in self._halves]
        return notes([number for part in parts for number in part])

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        for _, collector in self._halves:
            collector.cut()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._actor.load(weights, version)


def acting_in_process(
    make_environments: MakeEnvironments,
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
    make_environments: MakeEnvironments, environments: int, workers: int, cores: int | None = None
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


def step_seconds(make_environments: MakeEnvironments, budget: float = 0.05) -> float:
    """Median seconds of a step of one environment with the first legal action, measured for `budget` seconds."""
    environments = make_environments([0])
    try:
        observation, spaces = environments.reset(), environments.spaces
        taken: list[float] = []
        until = time.perf_counter() + budget
        while not taken or time.perf_counter() < until:
            action: Any = zeros(spaces.action, 1)
            if spaces.masked:
                action = observation[ACTION_MASK].argmax(-1).astype(action.dtype)
            began = time.perf_counter()
            observation = environments.step(action)[0]
            taken.append(time.perf_counter() - began)
        return float(np.median(taken))
    finally:
        environments.close()
