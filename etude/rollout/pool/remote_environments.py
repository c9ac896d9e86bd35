"""Environments in worker processes that only step: both ends.

Actions and outcomes go through shared memory. At every step each side notifies the other; see `NotificationPipe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, zeros
from etude.base.trees import Tree
from etude.protocols import Environments
from etude.rollout.episodes import Lost
from etude.rollout.fragments import Outcome
from etude.rollout.pool.channel import STEP, RestoreState, SaveState, SharedMemory, WorkerChannel
from etude.rollout.pool.process import Failure, ProcessWorker
from etude.rollout.pool.supervisor import WorkerSupervisor
from etude.rollout.rows import Carver


class Board:
    """The actions and outcomes of one time step of N environments, in a buffer. The same arguments give the same layout
    in every process."""

    def __init__(
        self,
        buffer: Any,
        spaces: Spaces,
        action: np.ndarray,
        environments: int,
        reward_shape: tuple[int, ...],
        kept: int = 0,
    ):
        """kept: how many numbers of `info` are kept."""
        carve, n = Carver(buffer), environments
        like = zeros(spaces.observation, 0)
        self.observation: Tree = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), like)
        self.final: Tree = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), like)
        self.reward: np.ndarray = carve((n, *reward_shape), np.dtype(np.float32))
        self.scores: np.ndarray = carve((n,), np.dtype(np.float32))
        self.terminated: np.ndarray = carve((n,), np.dtype(bool))
        self.truncated: np.ndarray = carve((n,), np.dtype(bool))
        self.action: np.ndarray = carve((n, *action.shape[1:]), action.dtype)
        self.info: np.ndarray = carve((n, kept), np.dtype(np.float32))

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


class StepPositions(NamedTuple):
    """Step these environments of a worker, by position, now and at every notification."""

    positions: tuple[int, ...]
    action: np.ndarray  # [0, ...] shape and type of actions


class ResetAll(NamedTuple):
    """`Environments.reset`."""


class SteppingServer:
    """Steps environments for a parent that acts: actions come and outcomes go through a board in shared memory. The
    environments have the places from `first` on, of `places` on the board."""

    def __init__(self, first: int, places: int, environments: Environments, memory: SharedMemory, generation: int):
        self._environments, self._buffer, self._first, self._places_in_all = (
            environments,
            memory.buffers[0],
            first,
            places,
        )
        self._counters = memory.counter_array()
        self._begun = False  # the counters already hold the episodes that the first reset starts
        _check_room(self._buffer, environments, places)

    def serve(self, request: Any, channel: WorkerChannel) -> None:
        """Carry out a request and send the answer."""
        environments = self._environments
        if isinstance(request, StepPositions):
            self._follow(request)
        if request == STEP or isinstance(request, StepPositions):
            self._step()
            channel.send_step()
            return
        if isinstance(request, ResetAll):
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

    def _follow(self, request: StepPositions) -> None:
        environments, positions = self._environments, request.positions
        self._board = _board_for(self._buffer, environments, request.action, self._places_in_all)
        self._places = as_places(tuple(self._first + i for i in positions))
        self._positions = positions
        self._at = None if positions == tuple(range(len(positions))) else positions

    def _step(self) -> None:
        outcome = self._environments.step(self._board.action[self._places].copy(), self._at)
        self._board.write(self._places, outcome)
        self._board.scores[self._places] = self._environments.scores
        if self._environments.info_names:
            self._board.info[self._places] = self._environments.info
        for i in outcome[-1]:
            self._counters[1 + self._positions[i]] += 1
        self._counters[0] += 1


class Interrupted(Exception):
    """A worker was replaced; see `RemoteEnvironments.take_lost`."""


class RemoteEnvironments:
    """Environments in worker processes, stepped together. `protocols.Environments`.

    A step may be taken in two parts, `begin` and `finish`. If a worker was replaced, its open episodes are lost:
    `finish` returns Lost in the place of final observations, and `state` raises Interrupted.
    """

    def __init__(self, supervisor: WorkerSupervisor, workers: list[ProcessWorker]):
        self._supervisor, self._workers = supervisor, workers
        self.spaces: Spaces = supervisor.ready.spaces
        self.native: bool = supervisor.ready.native
        self.reward_shape: tuple[int, ...] = supervisor.ready.reward_shape
        self.info_names: tuple[str, ...] = supervisor.ready.info_names
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
            self._direct(action, at)
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
        return trees.concatenate(self._supervisor.ask_all({worker.number: ResetAll() for worker in self._workers}))

    def state(self) -> list[dict[str, Any]]:
        """The open episodes."""
        answers = self._supervisor.ask_all({worker.number: SaveState() for worker in self._workers}, again=False)
        failed = [worker for worker, answer in zip(self._workers, answers, strict=True) if isinstance(answer, Failure)]
        for worker in failed:
            self._begin_again(worker)
        if failed:
            raise Interrupted
        return [saved for part in answers for saved in part]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Replay the open episodes."""
        requests = {worker.number: RestoreState([state[i] for i in self._of(worker)]) for worker in self._workers}
        answers = self._supervisor.ask_all(requests)
        lost = [self._of(worker)[i] for worker, (_, lost) in zip(self._workers, answers, strict=True) for i in lost]
        return trees.concatenate([observation for observation, _ in answers]), lost

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why; notes of their environments."""
        return self._supervisor.take_warnings()

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._supervisor.close()

    def _of(self, worker: ProcessWorker) -> range:
        """The positions of a worker's environments."""
        return range(worker.columns[0] - self._first, worker.columns[-1] - self._first + 1)

    def _direct(self, action: np.ndarray, at: tuple[int, ...] | None) -> None:
        """Let the workers step these environments, from this step on."""
        self._at, self._positions = at, tuple(range(len(action))) if at is None else at
        self._places = as_places(self._positions)
        like = action[:0].copy()
        self._board = _board_for(self._workers[0].memory.buffers[0], self, like, len(self.columns))
        self._board.action[self._places] = action
        self._busy = []
        for worker in self._workers:
            mine = self._of(worker)
            stepped = tuple(i - mine.start for i in self._positions if i in mine)
            if stepped:
                worker.ask(StepPositions(stepped, like))
                self._busy.append(worker)

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
                reward[i], terminated[i], truncated[i], final[i] = 0.0, False, False, Lost()
                self.scores[i] = 0.0
                if self.info_names:
                    self.info[i] = np.nan
        return observation, reward, terminated, truncated, final

    def _begin_again(self, worker: ProcessWorker) -> None:
        """Let a new worker begin its episodes. It has not been asked to step anything."""
        (observation,) = self._supervisor.ask_all({worker.number: ResetAll()})
        for i, position in enumerate(self._of(worker)):
            self._lost.append((position, trees.rows(observation, i), int(worker.counters[1 + i])))
        self._positions = ()


def _board_for(buffer: Any, like: Environments | RemoteEnvironments, action: np.ndarray, places: int) -> Board:
    """The board of a pool whose environments are like these."""
    return Board(buffer, like.spaces, action, places, like.reward_shape, len(like.info_names))


def _check_room(buffer: Any, environments: Environments, places: int) -> None:
    try:
        _board_for(buffer, environments, zeros(environments.spaces.action, 0), places)
    except TypeError:  # an array does not fit in the buffer
        raise ConfigError(
            f"One time step of {places} environments does not fit in the pool's buffer of {len(buffer)} bytes. Take "
            "fewer environments."
        ) from None
