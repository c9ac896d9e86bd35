"""Collects in worker processes that act by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude import trees
from etude.data import EpisodeEnd, Steps
from etude.errors import NetworkError
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.acting import Free, MakeActing, Order, Piece, PortableActor, Restore, Save, weights_in
from etude.rollout.crew import Crew, PoolOptions, registered_environments, split_columns
from etude.rollout.process import Failure, Worker, share_memory
from etude.rollout.rows import Ends, Rows, Template
from etude.rollout.saved import notes, pack, unpack
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
        self.environments, self._overlap = environments, options.overlap
        self._make_environments, self._make_actor = make_environments, make_actor
        self._explorer, self._run_seed = explorer, run_seed
        like = make_actor().weights()
        parts = split_columns(environments, workers)
        crew = [Worker(i, part, share_memory(len(part), options.buffer, like)) for i, part in enumerate(parts)]
        self._shared = [weights_in(worker.memory.weights, like) for worker in crew]
        self._staged: Weights = {}
        self._loaded: set[str] = set()
        self._version = 0
        self._templates: dict[int, Template] = {}
        self._flight: _Flight | None = None
        self._ahead: Steps | None = None
        self._cut: set[int] = set()  # the workers whose next steps do not continue what was returned
        self._crew = Crew(crew, self._job, options)
        self.spaces = self._crew.ready.spaces

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`."""
        n = self.environments if environments is None else environments
        collected = self._settle()
        if collected is not None and collected.shape != (steps, n):
            dropped, collected = len(collected), None
            self._crew.warnings.append(f"{dropped} steps collected ahead are dropped: a different chunk is wanted.")
            self._cut = {worker.number for worker in self._crew.workers}
        if collected is None:
            self._flight = self._start(steps, step, n)
            collected = self._finish(self._flight)
        self._flight = self._ahead = None
        if upcoming and self._overlap:
            self._flight = self._start(upcoming, step + len(collected), self.environments)
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
        told, self._crew.warnings = self._crew.warnings, []
        return told

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
        serve = MakeActing(self._make_actor, self._explorer, self._run_seed, worker.generation)
        new = worker.generation == 0
        return Job(self._make_environments, worker.columns, self._run_seed, new, registered_environments(), serve)

    def _put(self, weights: Weights) -> None:
        """Write weights where the workers read them; only while none of them works."""
        for shared in self._shared:
            for name, value in weights.items():
                shared[name][...] = value
        self._version += 1
        self._loaded.update(weights)

    def _settle(self) -> Steps | None:
        """The chunk that was collected ahead, once it is complete."""
        if self._flight is not None:
            self._ahead = self._finish(self._flight)
            self._flight = None
        return self._ahead

    def _start(self, steps: int, step: int, n: int) -> _Flight:
        if self._staged:
            self._put(self._staged)
            self._staged = {}
        order = Order(steps, step, n, n, self._version, tuple(sorted(self._loaded)), False)
        flight = _Flight(order, [_Share.of(worker, n) for worker in self._crew.workers if worker.columns[0] < n])
        for share in flight.shares:
            share.worker.ask(order._replace(n=share.n, cut=share.worker.number in self._cut))
            self._cut.discard(share.worker.number)
        return flight

    def _finish(self, flight: _Flight) -> Steps:
        while busy := {share.worker.number: share for share in flight.shares if share.done < flight.order.steps}:
            for worker, answer in self._crew.wait([share.worker for share in busy.values()]):
                share = busy[worker.number]
                if isinstance(answer, Failure):
                    share.forget()
                    self._crew.replace(worker, answer)
                    worker.ask(flight.order._replace(n=share.n))
                else:
                    self._templates[worker.number] = answer.template or self._templates[worker.number]
                    flight.take(share, answer, self._templates[worker.number])
                    if share.done < flight.order.steps:
                        worker.ask(Free())
        for share in flight.shares:
            share.worker.failures = 0
        return flight.to_steps()


@dataclass
class _Share:
    """What one worker contributes to a chunk."""

    worker: Worker
    n: int  # environments
    done: int = 0  # time steps
    pieces: list[Piece] = field(default_factory=list)

    @staticmethod
    def of(worker: Worker, n: int) -> _Share:
        return _Share(worker, min(len(worker.columns), n - worker.columns[0]))

    @property
    def columns(self) -> slice:
        first = self.worker.columns[0]
        return slice(first, first + self.n)

    def forget(self) -> None:
        """Drop what a worker had collected before it failed."""
        self.done = 0
        self.pieces.clear()


class _Flight:
    """A chunk that is being collected."""

    def __init__(self, order: Order, shares: list[_Share]):
        self.order, self.shares = order, shares
        self._rows: Rows

    def take(self, share: _Share, piece: Piece, template: Template) -> None:
        """Copy the rows of a piece out of the worker's buffer."""
        if not any(each.pieces for each in self.shares):
            self._rows = Rows.allocate(template, self.order.steps, self.order.n)
        buffer = share.worker.memory.buffers[piece.buffer]
        self._rows.place(Rows.over(buffer, template, piece.steps, piece.width), share.done, share.columns)
        share.pieces.append(piece)
        share.done += piece.steps

    def to_steps(self) -> Steps:
        """The whole chunk, in the order of environments."""
        restarted = np.zeros(self.order.n, bool)
        indices, observations = [], []
        episodes: list[EpisodeEnd] = []
        for share in self.shares:
            restarted[share.columns] = share.pieces[0].restarted
            start = 0
            for piece in share.pieces:
                indices.append(piece.ends.index + (start, share.columns.start))
                observations.append(piece.ends.observation)
                episodes.extend(piece.ends.episodes)
                start += piece.steps
        ends = Ends(np.concatenate(indices), trees.concatenate(observations), tuple(episodes))
        by_time = np.lexsort((ends.index[:, 1], ends.index[:, 0]))
        return self._rows.to_steps(ends.take(by_time), np.arange(self.order.n), restarted)
