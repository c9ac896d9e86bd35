"""Whole episodes, put together from the pieces in which they were collected: one `Steps` for each environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import Steps
from etude.base.trees import Tree
from etude.rollout.collector import End
from etude.rollout.rows import Ends, Rows


class Stretch(NamedTuple):
    """Time steps start to stop, which the environments at these positions took together: one column for each."""

    start: int
    stop: int
    positions: tuple[int, ...]


class Played(NamedTuple):
    """Some time steps of environments that go on until each has ended an episode.

    Those that have ended one wait. The others close up: a row holds only the environments that took this time step, in
    its first columns.
    """

    rows: Rows | None  # None where they are in a buffer that somebody else has, too
    stretches: tuple[Stretch, ...]
    ends: tuple[End, ...]
    positions: tuple[int, ...]  # those that took steps
    next_observation: Tree  # [len(positions), ...]
    restarted: np.ndarray  # [len(positions)] bool
    lost: frozenset[int]  # positions whose episode was lost with its process; another has begun
    left: tuple[int, ...]  # positions that have not ended an episode yet

    @property
    def steps(self) -> int:
        """Time steps."""
        return self.stretches[-1].stop


class Episodes:
    """The pieces of one episode of each of N environments.

    Environments of a native simulator stay together, in one `Steps`: they cannot wait for each other. Their episodes
    are as many as they are when the last has ended its first.
    """

    def __init__(self, environments: int, native: bool):
        everyone = range(environments)
        self._groups = [_Group(everyone)] if native else [_Group(range(i, i + 1)) for i in everyone]
        self.left = tuple(everyone)  # positions that have not ended an episode yet
        self.time = 0  # time steps of the pieces so far

    def add(self, played: Played) -> None:
        """Copy the rows of a piece. What an environment had before it was lost is dropped."""
        for group in self._groups_at(played.positions):
            group.add(played)
        self.time += played.steps
        self.left = played.left
        self.forget(played.lost)

    def forget(self, positions: Any) -> None:
        """Drop what there is of these environments, which are to end another episode."""
        for group in self._groups_at(positions):
            group.clear()
            self.left = tuple(sorted({*self.left, *group.positions}))

    def to_steps(self, columns: np.ndarray) -> tuple[Steps, ...]:
        """One `Steps` for each environment, or one for all of a native simulator; `columns` [N] are their numbers."""
        return tuple(group.to_steps(columns[group.positions.start : group.positions.stop]) for group in self._groups)

    def _groups_at(self, positions: Any) -> Iterator[_Group]:
        if len(self._groups) == 1:
            return iter(self._groups if positions else ())
        return (self._groups[i] for i in positions)


class _Group:
    """Environments whose time steps are the same."""

    def __init__(self, positions: range):
        self.positions = positions
        self.clear()

    def clear(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._ends: list[End] = []
        self._length = 0
        self._restarted = np.zeros(0, bool)
        self._next_observation: Tree = None

    def add(self, played: Played) -> None:
        first, n, begun = self.positions.start, len(self.positions), self._length
        assert played.rows is not None
        for start, stop, positions in played.stretches:
            if first in positions:
                column = positions.index(first)
                self._blocks.append(played.rows.copied(slice(start, stop), slice(column, column + n)))
                self._length += stop - start
        self._ends += [end._replace(t=begun + end.t) for end in played.ends if end.position in self.positions]
        place = played.positions.index(first)
        self._next_observation = trees.rows(played.next_observation, slice(place, place + n))
        if not begun:
            self._restarted = played.restarted[place : place + n]

    def to_steps(self, columns: np.ndarray) -> Steps:
        rows = self._blocks[0] if len(self._blocks) == 1 else trees.concatenate(self._blocks)
        index = [(end.t, end.position - self.positions.start) for end in self._ends]
        ends = Ends.of(index, [end.observation for end in self._ends], [end.episode for end in self._ends], None)
        return Steps(
            **rows,
            next_observation=self._next_observation,
            final_observation=ends.observation,
            final_index=ends.index,
            columns=columns,
            restarted=self._restarted,
            episodes=ends.episodes,
        )
