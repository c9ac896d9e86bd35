"""Steps as a rollout returns them, put together into whole episodes; and episodes as flat columns of M transitions, the
way D4RL has them, and back.

Fu et al. 2020, D4RL: Datasets for deep data-driven reinforcement learning, arXiv:2004.07219.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import Episode, Steps
from etude.base.errors import DataError
from etude.base.trees import Tree


@dataclass(frozen=True)
class Columns:
    """The transitions of all episodes, one after the other."""

    observation: Tree  # [M, ...]
    action: np.ndarray  # [M, ...]
    reward: np.ndarray  # [M] float32
    terminal: np.ndarray  # [M] bool: the world ended
    timeout: np.ndarray  # [M] bool: the episode ended otherwise
    next_observation: Tree | None  # [M, ...] the true ones
    extras: dict[str, np.ndarray]  # [M, ...]


def split(columns: Columns, name: str) -> tuple[list[Episode], int]:
    """(episodes, dropped transitions). name: of the file, for errors.

    An episode ends where `terminal` or `timeout` say so, and with the last row. Where there are no next observations:

    - A row that times out, and a last row that nothing ends, is dropped: what followed it is unknown, and the next row
      belongs to another episode. The episode is then one transition shorter and ends, truncated, in that row's
      observation.
    - A row that terminates is kept, for its reward; nothing is bootstrapped from what followed it. Its own observation
      stands for the final one.

    Raises DataError where next observations say that an episode ended, and the flags do not.
    """
    ends = np.flatnonzero(columns.terminal | columns.timeout)
    count = len(columns.reward)
    if not len(ends) or ends[-1] != count - 1:
        ends = np.append(ends, count - 1)
    if columns.next_observation is not None:
        _check_continuity(columns, ends, name)
    episodes, dropped, start = [], 0, 0
    for end in ends.tolist():
        terminated = bool(columns.terminal[end])
        unknown = columns.next_observation is None and not terminated
        stop = end if unknown else end + 1
        dropped += unknown
        if stop > start:
            here = slice(start, stop)
            if columns.next_observation is not None:
                final = trees.rows(columns.next_observation, slice(stop - 1, stop))
            else:
                final = trees.rows(columns.observation, slice(stop - 1, stop) if terminated else slice(stop, stop + 1))
            episodes.append(
                Episode(
                    observation=trees.concatenate([trees.rows(columns.observation, here), final]),
                    action=columns.action[here],
                    reward=columns.reward[here],
                    terminated=terminated,
                    truncated=not terminated or bool(columns.timeout[stop - 1]),
                    extras={name: values[here] for name, values in columns.extras.items()},
                )
            )
        start = end + 1
    return episodes, dropped


def _check_continuity(columns: Columns, ends: np.ndarray, name: str) -> None:
    goes_on = np.ones(len(columns.reward), bool)
    goes_on[ends] = False
    rows = np.flatnonzero(goes_on)
    pairs = zip(trees.leaves(columns.observation), trees.leaves(columns.next_observation), strict=True)
    for here, after in pairs:
        differs = (here[rows + 1] != after[rows]).any(axis=tuple(range(1, here.ndim)))
        if differs.any():
            row = int(rows[np.argmax(differs)])
            raise DataError(
                f"{name}: column 'next_observations', row {row}: it is not the observation of row {row + 1}, and "
                "neither 'terminals' nor 'timeouts' ends the episode there. Set timeouts to 1 in that row, or put the "
                "transitions of an episode in order."
            )


@dataclass(frozen=True, slots=True)
class EpisodeBlock:
    """E whole episodes: their M transitions, one after the other, and where each ends."""

    observation: Tree  # [M, ...]
    action: np.ndarray  # [M, ...]
    reward: np.ndarray  # [M] float32; [M, agents] of several agents
    extras: dict[str, np.ndarray]  # [M, ...]
    final_observation: Tree  # [E, ...] the true last ones
    lengths: np.ndarray  # [E] int64
    terminated: np.ndarray  # [E] bool
    truncated: np.ndarray  # [E] bool
    environment: np.ndarray  # [E] int64: the index of the environment
    number: np.ndarray  # [E] int64: counts the episodes of an environment, from 0

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """Of the transitions, in memory."""
        return trees.count_bytes((self.observation, self.action, self.reward, self.extras))

    @property
    def last(self) -> np.ndarray:
        """The row of the last transition of each episode, [E]."""
        return np.cumsum(self.lengths) - 1

    def split(self, rows: int) -> Iterator[EpisodeBlock]:
        """Blocks of about so many transitions, or of one longer episode."""
        stops = self.last + 1
        pieces = np.unique(np.searchsorted(stops, np.arange(rows, stops[-1], rows)) + 1)
        bounds = [0, *pieces[pieces < len(self)].tolist(), len(self)]
        for start, stop in zip(bounds, bounds[1:], strict=False):
            some = slice(start, stop)
            here = slice(int(stops[start] - self.lengths[start]), int(stops[stop - 1]))
            yield EpisodeBlock(
                trees.rows(self.observation, here), self.action[here], self.reward[here],
                {name: values[here] for name, values in self.extras.items()}, trees.rows(self.final_observation, some),
                self.lengths[some], self.terminated[some], self.truncated[some], self.environment[some],
                self.number[some],
            )  # fmt: skip

    def columns(self, following: bool = True) -> Columns:
        """The transitions as flat columns. following: with the observation after each of them."""
        rows, last = len(self.reward), self.last
        terminal, timeout = np.zeros(rows, bool), np.zeros(rows, bool)
        terminal[last], timeout[last] = self.terminated, self.truncated | ~self.terminated
        after = trees.map(_shifted(last), self.observation, self.final_observation) if following else None
        return Columns(self.observation, self.action, self.reward, terminal, timeout, after, self.extras)

    def episodes(self) -> Iterator[Episode]:
        """One after the other, in arrays of their own."""
        for i, stop in enumerate((self.last + 1).tolist()):
            here = slice(stop - int(self.lengths[i]), stop)
            final = trees.rows(self.final_observation, slice(i, i + 1))
            yield Episode(
                observation=trees.concatenate([trees.rows(self.observation, here), final]),
                action=self.action[here].copy(),  # a view would keep all of the block in memory
                reward=self.reward[here].copy(),
                terminated=bool(self.terminated[i]),
                truncated=bool(self.truncated[i]),
                extras={name: values[here].copy() for name, values in self.extras.items()},
            )


class _Ended(NamedTuple):
    rows: list[np.ndarray]  # of the episode, in order
    final: Tree  # [...]
    terminated: bool
    truncated: bool
    environment: int
    number: int


class EpisodeAssembler:
    """Puts episodes together from `Steps` of any environments, in the order in which they end.

    incomplete: episodes that were left out because their first steps were not seen: an open one that the next steps do
    not continue, and one that had begun before.
    """

    def __init__(self) -> None:
        self.incomplete: int = 0
        self._parts: list[dict[str, Any]] = []  # rows [M, ...], by the names that they have in `Steps`
        self._rows = 0
        self._ended: list[_Ended] = []
        self._ended_rows = 0
        self._open: dict[int, list[np.ndarray]] = {}  # by environment: rows of the episode that goes on
        self._following: dict[int, Tree] = {}  # by environment: the observation [...] after those rows

    @property
    def ended_bytes(self) -> int:
        """Bytes of the transitions of ended episodes."""
        return self._ended_rows * self._row_bytes()

    @property
    def open_bytes(self) -> int:
        """Bytes of the other transitions."""
        return (self._rows - self._ended_rows) * self._row_bytes()

    def holds_only(self, extras: Mapping[str, np.ndarray]) -> bool:
        """Whether what was added and not taken has these extras, by name."""
        return not self._parts or self._parts[0]["extras"].keys() == extras.keys()

    def add(self, steps: Steps) -> None:
        """Take in what was collected next; copies it."""
        time, count = steps.shape
        rows = self._rows + np.arange(time * count).reshape(time, count)

        def copied(leaf: np.ndarray) -> np.ndarray:
            return np.array(leaf).reshape(time * count, *leaf.shape[2:])

        named = {name: getattr(steps, name) for name in ("observation", "action", "reward", "extras")}
        self._store(trees.map(copied, named), time * count)
        columns = steps.columns.tolist()
        for column, restarted in zip(columns, steps.restarted.tolist(), strict=True):
            if restarted and self._open.pop(column, None):
                self.incomplete += 1
        start = [0] * count
        known = len(steps.episodes) == len(steps.final_index)
        for i, (t, n) in enumerate(steps.final_index.tolist()):
            pieces = [*self._open.pop(columns[n], []), rows[start[n] : t + 1, n]]
            start[n], length = t + 1, sum(map(len, pieces))
            if known and steps.episodes[i].length != length:
                self.incomplete += 1
                continue
            final = trees.rows(steps.final_observation, i)
            ended = bool(steps.terminated[t, n]), bool(steps.truncated[t, n])
            self._ended.append(_Ended(pieces, final, *ended, columns[n], steps.episodes[i].episode if known else i))
            self._ended_rows += length
        following = trees.map(np.copy, steps.next_observation)
        for n, column in enumerate(columns):
            if start[n] < time:
                self._open.setdefault(column, []).append(rows[start[n] :, n])
                self._following[column] = trees.rows(following, n)

    def take(self) -> EpisodeBlock | None:
        """The episodes that have ended since the last call; None where there are none."""
        if not self._ended:
            return None
        ended, everything = self._ended, _joined(self._parts)
        self._ended, self._ended_rows = [], 0
        block = _block(everything, ended)
        kept = {column: np.concatenate(pieces) for column, pieces in self._open.items()}
        self._parts, self._rows, self._open = [], 0, {}
        if kept:
            order = np.concatenate(list(kept.values()))
            self._store(trees.rows(everything, order), len(order))
            ends = np.cumsum([len(rows) for rows in kept.values()]).tolist()
            places = np.split(np.arange(len(order)), ends[:-1])
            self._open = {column: [place] for column, place in zip(kept, places, strict=True)}
        return block

    def unfinished(self) -> EpisodeBlock | None:
        """The open episodes as they are, neither terminated nor truncated, by environment; None where there are none.
        They go on afterwards."""
        open_ = [(column, pieces) for column, pieces in sorted(self._open.items()) if pieces]
        ended = [_Ended(pieces, self._following[column], False, False, column, 0) for column, pieces in open_]
        return _block(_joined(self._parts), ended) if ended else None

    def restore(self, episodes: Mapping[int, Episode]) -> None:
        """Continue open episodes, by environment, from what `unfinished` returned."""
        self.forget()
        for column, episode in episodes.items():
            length = len(episode.reward)
            self._open[column] = [self._rows + np.arange(length)]
            observation = trees.rows(episode.observation, slice(0, -1))
            self._following[column] = trees.rows(episode.observation, -1)
            part = {"observation": observation, "action": episode.action, "reward": episode.reward}
            self._store({**part, "extras": dict(episode.extras)}, length)

    def forget(self) -> None:
        """Drop everything that was not taken."""
        self._parts, self._rows, self._ended, self._ended_rows, self._open = [], 0, [], 0, {}

    def _store(self, part: dict[str, Any], rows: int) -> None:
        self._parts.append(part)
        self._rows += rows

    def _row_bytes(self) -> int:
        return trees.count_bytes(self._parts[0]) // max(1, len(self._parts[0]["reward"])) if self._parts else 0


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else trees.concatenate(parts)


def _block(everything: dict[str, Any], ended: list[_Ended]) -> EpisodeBlock:
    found = trees.rows(everything, np.concatenate([rows for each in ended for rows in each.rows]))
    return EpisodeBlock(
        **found,
        final_observation=trees.stack([each.final for each in ended]),
        lengths=np.array([sum(map(len, each.rows)) for each in ended], np.int64),
        terminated=np.array([each.terminated for each in ended], bool),
        truncated=np.array([each.truncated for each in ended], bool),
        environment=np.array([each.environment for each in ended], np.int64),
        number=np.array([each.number for each in ended], np.int64),
    )


def _shifted(last: np.ndarray) -> Any:
    """From observations [M, ...] and final ones [E, ...], what followed each."""

    def following(own: np.ndarray, final: np.ndarray) -> np.ndarray:
        found = np.empty_like(own)
        found[:-1], found[last] = own[1:], final
        return found

    return following


class EpisodeRecorder:
    """Puts episodes together from `Steps` of any environments, in the order in which they end.

    episodes: the whole ones so far.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._assembler = EpisodeAssembler()

    def add(self, steps: Steps) -> None:
        """Take in what was collected next. An episode whose first steps were not added is left out."""
        self._assembler.add(steps)
        if (block := self._assembler.take()) is not None:
            self.episodes += block.episodes()

    def cut(self) -> None:
        """End the open episodes where they are, truncated."""
        if (block := self._assembler.unfinished()) is not None:
            self.episodes += (replace(each, truncated=True) for each in block.episodes())
        self._assembler.forget()
