"""The arrays that a chunk of steps is written into, in memory of one's own or in memory that processes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import Choice, EpisodeEnd, Steps
from etude.base.trees import Tree

_ALIGNMENT = 64  # bytes: a cache line

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class Template(NamedTuple):
    """What one row of one environment looks like: arrays of shape [0, ...]."""

    observation: Tree
    action: np.ndarray
    extras: dict[str, np.ndarray]
    reward: np.ndarray  # [0] or [0, agents]

    @staticmethod
    def of(observation: Tree, choice: Choice, reward_shape: tuple[int, ...] = ()) -> Template:
        """The template of observations [N, ...] and what an explorer made of them."""
        extras = {name: value[:0].copy() for name, value in choice.extras.items()}
        none = trees.map(lambda leaf: leaf[:0].copy(), observation)
        return Template(none, choice.action[:0].copy(), extras, np.zeros((0, *reward_shape), np.float32))


@dataclass(frozen=True, slots=True)
class Ends:
    """The E episodes that ended in a chunk."""

    index: np.ndarray  # [E, 2] int64: (t, n)
    observation: Tree  # [E, ...] the true last ones
    episodes: tuple[EpisodeEnd, ...]

    @staticmethod
    def of(index: list[tuple[int, int]], observations: list[Tree], episodes: list[EpisodeEnd], like: Tree) -> Ends:
        """From one entry for each; `like` is a tree [0, ...] of such observations."""
        observation = trees.stack(observations) if observations else like
        return Ends(np.array(index, np.int64).reshape(-1, 2), observation, tuple(episodes))

    @staticmethod
    def join(parts: list[Ends], places: list[tuple[int, int]]) -> Ends:
        """Those of several parts of a chunk, which begin at these places (t, n)."""
        index = np.concatenate([part.index + place for part, place in zip(parts, places, strict=True)])
        observation = trees.concatenate([part.observation for part in parts])
        joined = Ends(index, observation, tuple(end for part in parts for end in part.episodes))
        return joined.take(np.lexsort((index[:, 1], index[:, 0])))

    def take(self, order: np.ndarray) -> Ends:
        """Some of them, in this order."""
        episodes = tuple(self.episodes[i] for i in order.tolist())
        return Ends(self.index[order], trees.rows(self.observation, order), episodes)


@dataclass(frozen=True, slots=True)
class Rows:
    """Room for T time steps of N environments, and for the observation after the last."""

    observation: Tree  # [T + 1, N, ...]
    action: np.ndarray  # [T, N, ...]
    reward: np.ndarray  # [T, N] float32
    terminated: np.ndarray  # [T, N] bool
    truncated: np.ndarray  # [T, N] bool
    extras: dict[str, np.ndarray]  # [T, N, ...]

    @staticmethod
    def allocate(template: Template, steps: int, environments: int, new: Allocate = np.empty) -> Rows:
        """Rows for `steps` time steps; `new(shape, dtype)` gives the memory."""

        def room(leaf: np.ndarray, more: int = 0) -> np.ndarray:
            return new((steps + more, environments, *leaf.shape[1:]), leaf.dtype)

        flat = steps, environments
        return Rows(
            trees.map(lambda leaf: room(leaf, 1), template.observation),
            room(template.action),
            room(template.reward),
            new(flat, np.dtype(bool)),
            new(flat, np.dtype(bool)),
            {name: room(value) for name, value in template.extras.items()},
        )

    @staticmethod
    def over(buffer: Any, template: Template, steps: int, environments: int) -> Rows:
        """Rows in a buffer. The same arguments give the same places in every process."""
        return Rows.allocate(template, steps, environments, carver(buffer))

    def place(self, other: Rows, start: int, columns: slice) -> None:
        """Copy the time steps of `other` to these columns, from time step `start` on."""
        steps, n = len(other.reward), columns.stop - columns.start
        here, there = (slice(start, start + steps), columns), (slice(0, steps), slice(0, n))
        one_more = (slice(start, start + steps + 1), columns)
        trees.put(self.observation, one_more, trees.rows(other.observation, (slice(0, steps + 1), there[1])))
        self.action[here] = other.action[there]
        self.reward[here] = other.reward[there]
        self.terminated[here] = other.terminated[there]
        self.truncated[here] = other.truncated[there]
        for name, value in self.extras.items():
            value[here] = other.extras[name][there]

    def first(self, environments: int) -> Rows:
        """The first columns; the arrays are shared, not copied."""
        if environments == self.reward.shape[1]:
            return self
        return self.between(slice(0, environments))

    def between(self, columns: slice) -> Rows:
        """Some columns; the arrays are shared, not copied."""
        here = slice(None), columns
        return Rows(
            trees.rows(self.observation, here),
            self.action[here],
            self.reward[here],
            self.terminated[here],
            self.truncated[here],
            {name: value[here] for name, value in self.extras.items()},
        )

    def copied(self, times: slice, columns: slice) -> dict[str, Any]:
        """Copies of some time steps of some columns, by the names that they have in `Steps`."""
        here = times, columns
        return {
            "observation": trees.map(lambda leaf: leaf[here].copy(), self.observation),
            "action": self.action[here].copy(),
            "reward": self.reward[here].copy(),
            "terminated": self.terminated[here].copy(),
            "truncated": self.truncated[here].copy(),
            "extras": {name: value[here].copy() for name, value in self.extras.items()},
        }

    def to_steps(self, ends: Ends, columns: np.ndarray, restarted: np.ndarray) -> Steps:
        """These rows as `Steps`, of the first len(columns) environments; the arrays are shared, not copied.

        ends: sorted by t, then n.
        """
        n, steps = len(columns), len(self.reward)
        if n < self.reward.shape[1]:
            ends = ends.take(np.flatnonzero(ends.index[:, 1] < n))
        here = slice(0, steps), slice(0, n)
        return Steps(
            observation=trees.rows(self.observation, here),
            action=self.action[here],
            reward=self.reward[here],
            terminated=self.terminated[here],
            truncated=self.truncated[here],
            next_observation=trees.rows(self.observation, (steps, here[1])),
            final_observation=ends.observation,
            final_index=ends.index,
            columns=columns,
            restarted=restarted,
            extras={name: value[here] for name, value in self.extras.items()},
            episodes=ends.episodes,
        )


def carver(buffer: Any) -> Allocate:
    """Gives arrays in a buffer, one after the other."""
    offset = 0

    def carve(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nonlocal offset
        array = np.ndarray(shape, dtype, buffer, offset)
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array

    return carve


def row_bytes(template: Template) -> int:
    """Bytes of one time step of one environment."""
    leaves = [*trees.leaves(template.observation), template.action, template.reward, *template.extras.values()]
    return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves) + 2


def capacity(template: Template, environments: int, size: int) -> int:
    """How many time steps fit in a buffer of `size` bytes; may be 0."""
    arrays = len(trees.leaves(template.observation)) + len(template.extras) + 4
    return (size - arrays * _ALIGNMENT) // (row_bytes(template) * environments) - 1
