"""Steps as a rollout returns them, turned into episodes."""

from __future__ import annotations

import numpy as np

from etude.base import trees
from etude.base.data import Episode, Steps
from etude.base.trees import Tree


class EpisodeRecorder:
    """Puts episodes together from `Steps` of any environments, in the order in which they are collected.

    episodes: the whole ones so far, in the order in which they ended.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._open: dict[int, list[Episode]] = {}  # by environment: pieces of the episode that goes on

    def add(self, steps: Steps) -> None:
        """Take in what was collected next. An open episode that these steps do not continue is dropped: what its last
        step led to is not known to the recorder."""
        for column, restarted in zip(steps.columns.tolist(), steps.restarted.tolist(), strict=True):
            if restarted:
                self._open.pop(column, None)
        start = dict.fromkeys(range(steps.shape[1]), 0)
        for i, (t, n) in enumerate(steps.final_index.tolist()):
            ended = bool(steps.terminated[t, n]), bool(steps.truncated[t, n])
            piece = _piece(steps, n, start[n], t + 1, trees.rows(steps.final_observation, i), ended)
            self.episodes.append(_joined([*self._open.pop(int(steps.columns[n]), []), piece]))
            start[n] = t + 1
        for n, first in start.items():
            if first < steps.shape[0]:
                following = trees.rows(steps.next_observation, n)
                piece = _piece(steps, n, first, steps.shape[0], following, (False, False))
                self._open.setdefault(int(steps.columns[n]), []).append(piece)

    def cut(self) -> None:
        """End the open episodes where they are, truncated."""
        for column in sorted(self._open):
            self.episodes.append(_joined(self._open[column], truncated=True))
        self._open = {}


def _piece(steps: Steps, n: int, start: int, stop: int, following: Tree, ended: tuple[bool, bool]) -> Episode:
    here = slice(start, stop), n
    last = trees.map(lambda leaf: np.asarray(leaf)[None], following)
    return Episode(
        observation=trees.concatenate([trees.rows(steps.observation, here), last]),
        action=steps.action[here].copy(),  # a view would keep all of the chunk in memory
        reward=steps.reward[here].copy(),
        terminated=ended[0],
        truncated=ended[1],
        extras={name: values[here].copy() for name, values in steps.extras.items()},
    )


def _joined(pieces: list[Episode], truncated: bool = False) -> Episode:
    """One episode from its pieces, each of which ends in the observation that the next begins with."""
    last = pieces[-1]
    heads = [trees.rows(piece.observation, slice(0, -1)) for piece in pieces[:-1]]
    return Episode(
        observation=trees.concatenate([*heads, last.observation]),
        action=np.concatenate([piece.action for piece in pieces]),
        reward=np.concatenate([piece.reward for piece in pieces]),
        terminated=last.terminated,
        truncated=last.truncated or truncated,
        extras={name: np.concatenate([piece.extras[name] for piece in pieces]) for name in last.extras},
    )
