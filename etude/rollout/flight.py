"""What a pool's workers are collecting: who does what of it, and how the pieces are put together."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from etude.base.data import Steps
from etude.rollout.acting import EpisodePiece, Order, Piece
from etude.rollout.episodes import Episodes
from etude.rollout.process import Worker
from etude.rollout.rows import Ends, Rows, Template


class Flight(Protocol):
    """Something that workers collect."""

    workers: list[Worker]  # those that take part

    def order(self, worker: Worker) -> Order:
        """What a worker is to do, as long as it has not handed over anything that is kept."""

    def going(self, worker: Worker) -> bool:
        """Whether there is more to come from a worker."""

    def take(self, worker: Worker, piece: Any, template: Template) -> None:
        """Copy a piece out of the worker's buffer."""

    def lose(self, worker: Worker) -> None:
        """A worker has failed: drop what cannot be kept of what it handed over."""

    def result(self) -> Any:
        """All of it, in the order of environments."""


class ChunkFlight:
    """Time steps of the first environments. Returns `Steps`."""

    def __init__(self, order: Order, steps: int, n: int, workers: list[Worker]):
        self._order, self._steps, self._n = order, steps, n
        self.workers = [worker for worker in workers if worker.columns[0] < n]
        self._pieces: dict[int, list[Piece]] = {worker.number: [] for worker in self.workers}
        self._rows: Rows | None = None

    def order(self, worker: Worker) -> Order:
        """See `Flight`."""
        columns = self._columns(worker)
        return self._order._replace(steps=self._steps, n=columns.stop - columns.start)

    def going(self, worker: Worker) -> bool:
        """See `Flight`."""
        return self._done(worker) < self._steps

    def take(self, worker: Worker, piece: Piece, template: Template) -> None:
        """See `Flight`."""
        if self._rows is None:
            self._rows = Rows.allocate(template, self._steps, self._n)
        written = Rows.over(worker.memory.buffers[piece.buffer], template, piece.steps, piece.width)
        self._rows.place(written, self._done(worker), self._columns(worker))
        self._pieces[worker.number].append(piece)

    def lose(self, worker: Worker) -> None:
        """All columns have as many rows: nothing from before the failure is kept."""
        self._pieces[worker.number].clear()

    def result(self) -> Steps:
        """The whole chunk."""
        restarted = np.zeros(self._n, bool)
        ends, places = [], []
        for worker in self.workers:
            pieces, columns = self._pieces[worker.number], self._columns(worker)
            restarted[columns] = pieces[0].restarted
            start = 0
            for piece in pieces:
                ends.append(piece.ends)
                places.append((start, columns.start))
                start += piece.steps
        assert self._rows is not None
        return self._rows.to_steps(Ends.join(ends, places), np.arange(self._n), restarted)

    def _done(self, worker: Worker) -> int:
        return sum(piece.steps for piece in self._pieces[worker.number])

    def _columns(self, worker: Worker) -> slice:
        return slice(worker.columns[0], min(worker.columns[-1] + 1, self._n))


class EpisodesFlight:
    """One episode of every environment. Returns one `Steps` for each."""

    def __init__(self, order: Order, workers: list[Worker], native: bool):
        self._order, self.workers = order, workers
        self._episodes = [Episodes(len(worker.columns), native) for worker in workers]

    def order(self, worker: Worker) -> Order:
        """See `Flight`."""
        episodes = self._episodes[worker.number]
        return self._order._replace(left=episodes.left, time=episodes.time)

    def going(self, worker: Worker) -> bool:
        """See `Flight`."""
        return bool(self._episodes[worker.number].left)

    def take(self, worker: Worker, piece: EpisodePiece, template: Template) -> None:
        """See `Flight`."""
        rows = Rows.over(worker.memory.buffers[piece.buffer], template, piece.steps, piece.width)
        self._episodes[worker.number].add(piece.played._replace(rows=rows))

    def lose(self, worker: Worker) -> None:
        """Episodes that have ended are kept."""
        episodes = self._episodes[worker.number]
        episodes.forget(episodes.left)

    def result(self) -> tuple[Steps, ...]:
        """All episodes."""
        parts = zip(self.workers, self._episodes, strict=True)
        return tuple(steps for worker, part in parts for steps in part.to_steps(np.array(worker.columns)))
