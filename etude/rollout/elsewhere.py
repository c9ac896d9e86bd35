"""Environments in worker processes, behind the contract of environments in this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.trees import Tree
from etude.rollout.collector import Lost
from etude.rollout.crew import Crew
from etude.rollout.process import Failure, Worker
from etude.rollout.stepping import Board, Outcome, Reset, Restore, Save, Where, as_places


class Interrupted(Exception):
    """A worker was replaced; see `SteppedElsewhere.take_lost`."""


class SteppedElsewhere:
    """Environments of some workers, stepped together. `protocols.Environments`.

    A step may be taken in two parts, `begin` and `finish`. Where a worker had to be replaced, its open episodes are
    lost: `finish` has Lost in the place of final observations, and `state` raises Interrupted.
    """

    def __init__(self, crew: Crew, workers: list[Worker]):
        self._crew, self._workers = crew, workers
        self.spaces, self.native, self.reward_shape = crew.ready
        self.scores = np.empty(0, np.float32)
        self._first = workers[0].columns[0]
        self.columns = np.arange(self._first, workers[-1].columns[-1] + 1)
        self._board: Board
        self._at: tuple[int, ...] | None = None
        self._positions: tuple[int, ...] = ()  # those that the workers know they are to step
        self._busy: list[Worker] = []
        self._begun = False
        self._lost: list[tuple[int, Tree, int]] = []

    def begin(self, action: np.ndarray, at: tuple[int, ...] | None) -> None:
        """Let the workers step the first len(action) environments, or those at these positions."""
        self._begun = True
        if at is not self._at or len(action) != len(self._positions) or not self._board.takes(action):
            self._direct(action, at)
            return
        self._board.action[self._places] = action
        for worker in self._busy:
            worker.ask_step()

    def finish(self) -> Outcome | None:
        """Wait for what was begun; None if nothing was."""
        if not self._begun:
            return None
        self._begun = False
        failed: dict[int, Failure] = {}
        for worker in reversed(self._busy):  # the one that was asked last: to be woken once is enough
            answer = self._crew.hear(worker)
            if isinstance(answer, Failure):
                failed[worker.number] = answer
            else:
                worker.failures = 0
        outcome, self.scores = self._board.read(self._places), self._board.scores[self._places].copy()
        return self._without(failed, outcome) if failed else outcome

    def take_lost(self) -> list[tuple[int, Tree, int]]:
        """Environments that began a new episode because their worker was replaced: position, observation, episode."""
        lost, self._lost = self._lost, []
        return lost

    def step(self, action: np.ndarray, at: Sequence[int] | None = None) -> Any:
        """See `protocols.Environments`."""
        self.begin(action, None if at is None else tuple(at))
        return self.finish()

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""
        return trees.concatenate(self._crew.ask_all({worker.number: Reset() for worker in self._workers}))

    def state(self) -> list[dict]:
        """The open episodes."""
        answers = self._crew.ask_all({worker.number: Save() for worker in self._workers}, again=False)
        failed = [worker for worker, answer in zip(self._workers, answers, strict=True) if isinstance(answer, Failure)]
        for worker in failed:
            self._begin_again(worker)
        if failed:
            raise Interrupted
        return [saved for part in answers for saved in part]

    def restore(self, state: list[dict]) -> tuple[Tree, list[int]]:
        """Replay the open episodes."""
        requests = {worker.number: Restore([state[i] for i in self._of(worker)]) for worker in self._workers}
        answers = self._crew.ask_all(requests)
        lost = [self._of(worker)[i] for worker, (_, lost) in zip(self._workers, answers, strict=True) for i in lost]
        return trees.concatenate([observation for observation, _ in answers]), lost

    def warnings(self) -> list[str]:
        """What the workers' environments, or the loss of workers, gave reason to tell."""
        return self._crew.news()

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._crew.close()

    def _of(self, worker: Worker) -> range:
        """The positions of a worker's environments."""
        return range(worker.columns[0] - self._first, worker.columns[-1] - self._first + 1)

    def _direct(self, action: np.ndarray, at: tuple[int, ...] | None) -> None:
        """Tell the workers which environments they are to step, from this step on."""
        self._at, self._positions = at, tuple(range(len(action))) if at is None else at
        self._places = as_places(self._positions)
        like = action[:0].copy()
        self._board = Board(self._workers[0].memory.buffers[0], self.spaces, like, len(self.columns), self.reward_shape)
        self._board.action[self._places] = action
        self._busy = []
        for worker in self._workers:
            mine = self._of(worker)
            stepped = tuple(i - mine.start for i in self._positions if i in mine)
            if stepped:
                worker.ask(Where(stepped, like))
                self._busy.append(worker)

    def _without(self, failed: dict[int, Failure], outcome: Outcome) -> Outcome:
        """Replace workers, and what they did not do by the beginning of new episodes."""
        stepped = self._positions
        for number, failure in failed.items():
            worker = self._crew.workers[number]
            self._crew.replace(worker, failure)
            self._begin_again(worker)
        observation, reward, terminated, truncated, final = outcome
        for position, first, _ in self._lost:
            if position in stepped:
                i = stepped.index(position)
                trees.put(observation, i, first)
                reward[i], terminated[i], truncated[i], final[i] = 0.0, False, False, Lost()
                self.scores[i] = 0.0
        return observation, reward, terminated, truncated, final

    def _begin_again(self, worker: Worker) -> None:
        """Let a new worker begin its episodes. It knows nothing of which environments it is to step."""
        (observation,) = self._crew.ask_all({worker.number: Reset()})
        for i, position in enumerate(self._of(worker)):
            self._lost.append((position, trees.rows(observation, i), int(worker.counters[1 + i])))
        self._positions = ()
