"""Episodes: the statistics of open ones, and whole ones put together from fragments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import EpisodeEnd, Steps
from etude.base.trees import Tree
from etude.rollout.rows import EndedEpisode, EndedEpisodes, Rows


class EpisodeStatistics:
    """Undiscounted returns and lengths of the open episodes of N environments; with several agents also the return of
    each agent.

    agents: their names, in the order of their rewards; None for a single agent.
    """

    def __init__(self, environments: int, agents: Iterable[str] | None):
        self.agents: tuple[str, ...] = tuple(agents or ())
        self.length: np.ndarray = np.zeros(environments, np.int64)
        self.total: np.ndarray = np.zeros(environments)
        self.by_agent: np.ndarray = np.zeros((environments, len(self.agents)))  # NaN where a checkpoint did not hold it

    def add(self, scores: np.ndarray, reward: np.ndarray, at: Any = ...) -> None:
        """Add one step of the n environments at these positions (...: all). scores: what it adds to the return [n];
        reward: [n] or [n, agents]."""
        self.total[at] += scores
        self.length[at] += 1
        if self.agents:
            self.by_agent[at] += reward

    def reset(self, i: int) -> None:
        """A new episode begins in environment i."""
        self.total[i], self.length[i], self.by_agent[i] = 0.0, 0, 0.0

    def end(self, i: int, environment: int, episode: int, truncated: bool) -> EpisodeEnd:
        """The episode of environment i, which ended. environment, episode: their numbers in the run."""
        each = self.by_agent[i].tolist()
        by_agent = dict(zip(self.agents, each, strict=True)) if each and not np.isnan(each[0]) else None
        return EpisodeEnd(environment, episode, int(self.length[i]), float(self.total[i]), truncated, by_agent)

    def take(self, index: Any) -> EpisodeStatistics:
        """Those of some environments; a slice shares the arrays."""
        some = EpisodeStatistics(0, self.agents)
        some.total, some.length, some.by_agent = self.total[index], self.length[index], self.by_agent[index]
        return some

    def put(self, index: Any, some: EpisodeStatistics) -> None:
        """Write those of some environments back."""
        self.total[index], self.length[index], self.by_agent[index] = some.total, some.length, some.by_agent

    def state(self, i: int) -> dict[str, Any]:
        """Those of environment i as plain data."""
        by_agent = {"total_by_agent": self.by_agent[i].copy()} if self.agents else {}
        return {"length": int(self.length[i]), "total": float(self.total[i]), **by_agent}

    def restore(self, i: int, state: dict[str, Any]) -> None:
        """Continue environment i from `state`. Early checkpoints lack the returns by agent."""
        self.length[i], self.total[i] = state["length"], state["total"]
        self.by_agent[i] = state.get("total_by_agent", np.nan if state["length"] else 0.0)


class Lost(NamedTuple):
    """Replaces a final observation: the episode was lost with its worker, and another has begun."""


class EpisodeRows(NamedTuple):
    """Time steps of environments, each of which stops where it ends an episode. One column for each."""

    rows: Rows | None  # None on the way through a pipe: they are in shared memory
    lengths: np.ndarray  # [n] int64: rows of each column
    ends: tuple[EndedEpisode, ...]
    positions: tuple[int, ...]  # of the environments, by column
    next_observation: Tree  # [n, ...]
    restarted: np.ndarray  # [n] bool
    lost: tuple[int, ...]  # positions whose episode was lost with its worker; another has begun
    unfinished: tuple[int, ...]  # positions that have not ended an episode yet


class EpisodeAssembly:
    """One episode of each of N environments, put together from fragments.

    The environments of a native simulator stay together in one `Steps`, since they cannot be stepped one by one: it
    holds all episodes until the last of them has ended its first.
    """

    def __init__(self, environments: int, native: bool):
        everyone = range(environments)
        self._groups = [_Group(everyone)] if native else [_Group(range(i, i + 1)) for i in everyone]
        self.unfinished: tuple[int, ...] = tuple(everyone)  # positions that have not ended an episode yet
        self.time: int = 0  # time steps of the fragments so far

    def add(self, played: EpisodeRows) -> None:
        """Copy the rows of a fragment. What precedes a lost episode of an environment is dropped."""
        for group in self._groups_at(played.positions):
            group.add(played)
        self.time += int(played.lengths.max())
        self.unfinished = played.unfinished
        self.drop(played.lost)

    def drop(self, positions: tuple[int, ...]) -> None:
        """Drop the rows of these environments, which are to end another episode."""
        for group in self._groups_at(positions):
            group.clear()
            self.unfinished = tuple(sorted({*self.unfinished, *group.positions}))

    def to_steps(self, columns: np.ndarray) -> tuple[Steps, ...]:
        """One `Steps` for each environment, or one for all of a native simulator; `columns` [N] are their indices."""
        return tuple(group.to_steps(columns[group.positions.start : group.positions.stop]) for group in self._groups)

    def _groups_at(self, positions: tuple[int, ...]) -> Iterator[_Group]:
        if len(self._groups) == 1:
            return iter(self._groups if positions else ())
        return (self._groups[i] for i in positions)


class _Group:
    """Environments that end together."""

    def __init__(self, positions: range):
        self.positions = positions
        self.clear()

    def clear(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._ends: list[EndedEpisode] = []
        self._length = 0
        self._restarted = np.zeros(0, bool)
        self._next_observation: Tree = None

    def add(self, played: EpisodeRows) -> None:
        assert played.rows is not None
        first = played.positions.index(self.positions.start)
        columns, length, begun = slice(first, first + len(self.positions)), int(played.lengths[first]), self._length
        self._blocks.append(played.rows.copied(slice(0, length), columns))
        self._length += length
        own = [end for end in played.ends if columns.start <= end.column < columns.stop]
        self._ends += [end._replace(t=begun + end.t, column=end.column - first) for end in own]
        self._next_observation = trees.rows(played.next_observation, columns)
        if not begun:
            self._restarted = played.restarted[columns]

    def to_steps(self, columns: np.ndarray) -> Steps:
        rows = self._blocks[0] if len(self._blocks) == 1 else trees.concatenate(self._blocks)
        ends = EndedEpisodes.of(self._ends, None)
        return Steps(
            **rows,
            next_observation=self._next_observation,
            final_observation=ends.observation,
            final_index=ends.index,
            columns=columns,
            restarted=self._restarted,
            episodes=ends.episodes,
        )
