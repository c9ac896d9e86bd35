"""Episodes as flat columns of M transitions, the way D4RL has them, and back.

Fu et al. 2020, D4RL: Datasets for deep data-driven reinforcement learning, arXiv:2004.07219.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.base import trees
from etude.base.data import Episode
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


def join(episodes: Sequence[Episode]) -> Columns:
    """The columns of these episodes. One that is marked neither terminated nor truncated times out: a file has no other
    way to say that nothing continues it."""
    last = np.cumsum([len(episode.reward) for episode in episodes]) - 1
    terminal, timeout = np.zeros(last[-1] + 1, bool), np.zeros(last[-1] + 1, bool)
    terminal[last] = [episode.terminated for episode in episodes]
    timeout[last] = [episode.truncated or not episode.terminated for episode in episodes]
    return Columns(
        trees.concatenate([trees.rows(episode.observation, slice(0, -1)) for episode in episodes]),
        np.concatenate([episode.action for episode in episodes]),
        np.concatenate([np.asarray(episode.reward, np.float32) for episode in episodes]),
        terminal,
        timeout,
        trees.concatenate([trees.rows(episode.observation, slice(1, None)) for episode in episodes]),
        {name: np.concatenate([episode.extras[name] for episode in episodes]) for name in episodes[0].extras},
    )


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
            episodes.append(_episode(columns, start, stop, terminated))
        start = end + 1
    return episodes, dropped


def _episode(columns: Columns, start: int, stop: int, terminated: bool) -> Episode:
    here = slice(start, stop)
    if columns.next_observation is not None:
        final = trees.rows(columns.next_observation, slice(stop - 1, stop))
    else:
        final = trees.rows(columns.observation, slice(stop - 1, stop) if terminated else slice(stop, stop + 1))
    return Episode(
        observation=trees.concatenate([trees.rows(columns.observation, here), final]),
        action=columns.action[here],
        reward=columns.reward[here],
        terminated=terminated,
        truncated=not terminated or bool(columns.timeout[stop - 1]),
        extras={name: values[here] for name, values in columns.extras.items()},
    )


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
