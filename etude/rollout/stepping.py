"""Workers that only step: actions come and results go through memory that they share with the parent.

At every step a bell is rung each way; see `bells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, zeros
from etude.base.trees import Tree
from etude.protocols import Environments
from etude.rollout.rows import carver
from etude.rollout.worker import STEP, Channel, Memory, counters_of

Outcome = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Tree]]


class Where(NamedTuple):
    """Step these environments, by position in the worker, now and whenever the bell rings."""

    at: tuple[int, ...]
    action: np.ndarray  # [0, ...] what actions look like


class Reset(NamedTuple):
    """`Environments.reset`."""


class Save(NamedTuple):
    """`Environments.state`."""


class Restore(NamedTuple):
    """`Environments.restore`."""

    state: list[dict]


class Board:
    """The actions and results of one time step of N environments, in a buffer. The same arguments give the same places
    in every process."""

    def __init__(
        self, buffer: Any, spaces: Spaces, action: np.ndarray, environments: int, reward_shape: tuple[int, ...]
    ):
        carve, n = carver(buffer), environments
        like = zeros(spaces.observation, 0)
        self.observation = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), like)
        self.final = trees.map(lambda leaf: carve((n, *leaf.shape[1:]), leaf.dtype), like)
        self.reward, self.scores = (carve((n, *shape), np.dtype(np.float32)) for shape in (reward_shape, ()))
        self.terminated, self.truncated = carve((n,), np.dtype(bool)), carve((n,), np.dtype(bool))
        self.action = carve((n, *action.shape[1:]), action.dtype)

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


@dataclass(frozen=True)
class MakeStepping:
    """Makes the server of one worker, whose environments have the places from `first` on, of `places` on the board."""

    first: int
    places: int

    def __call__(self, environments: Environments, memory: Memory) -> Stepping:
        return Stepping(environments, memory, self)


class Stepping:
    """Serves a parent that acts."""

    def __init__(self, environments: Environments, memory: Memory, share: MakeStepping):
        self._environments, self._memory, self._share = environments, memory, share
        self._counters = counters_of(memory)
        self._begun = False  # the first reset starts the episodes that the counters say already
        _check_room(memory.buffers[0], environments, share.places)

    def serve(self, request: Any, channel: Channel) -> None:
        """Do what was asked and send the answer."""
        environments = self._environments
        if isinstance(request, Where):
            self._follow(request)
        if request is STEP or isinstance(request, Where):
            self._step()
            channel.send_step()
            return
        if isinstance(request, Reset):
            answer: Any = environments.reset()
            self._counters[1:] += self._begun
            self._begun = True
        elif isinstance(request, Restore):
            answer = environments.restore(request.state)
            self._counters[1:] = [saved.get("episode", 0) for saved in request.state]
            self._counters[[1 + i for i in answer[1]]] += 1
            self._begun = True
        else:
            answer = environments.state()
        self._counters[0] += 1
        channel.send(answer)

    def _follow(self, where: Where) -> None:
        environments, buffer = self._environments, self._memory.buffers[0]
        places, reward_shape = self._share.places, environments.reward_shape
        self._board = Board(buffer, environments.spaces, where.action, places, reward_shape)
        self._places = as_places(tuple(self._share.first + i for i in where.at))
        self._positions = where.at
        self._at = None if where.at == tuple(range(len(where.at))) else where.at

    def _step(self) -> None:
        outcome = self._environments.step(self._board.action[self._places].copy(), self._at)
        self._board.write(self._places, outcome)
        self._board.scores[self._places] = self._environments.scores
        for i in outcome[-1]:
            self._counters[1 + self._positions[i]] += 1
        self._counters[0] += 1


def _check_room(buffer: Any, environments: Environments, places: int) -> None:
    spaces = environments.spaces
    try:
        Board(buffer, spaces, zeros(spaces.action, 0), places, environments.reward_shape)
    except TypeError:  # an array does not fit in the buffer
        raise ConfigError(
            f"One time step of {places} environments does not fit in the pool's buffer of {len(buffer)} bytes. Give "
            "the pool options with a larger buffer."
        ) from None
