"""The arrays that collected steps are written into, in private or in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import Choice, EpisodeEnd, Steps
from etude.base.trees import Tree
from etude.workers.channel import ALIGNMENT, Carver

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class Template(NamedTuple):
    """Shapes and types of the row of one environment: arrays of shape [0, ...]."""

    observation: Tree
    action: np.ndarray
    extras: dict[str, np.ndarray]
    reward: np.ndarray  # [0] or [0, agents]

    @staticmethod
    def of(observation: Tree, choice: Choice, reward_shape: tuple[int, ...] = ()) -> Template:
        """The template of observations [N, ...] and an explorer's choice for them."""
        extras = {name: value[:0].copy() for name, value in choice.extras.items()}
        none = trees.map(lambda leaf: leaf[:0].copy(), observation)
        return Template(none, choice.action[:0].copy(), extras, np.zeros((0, *reward_shape), np.float32))


class EndedEpisode(NamedTuple):
    """An episode that ended: at time step t, in this column of the rows."""

    t: int
    column: int
    observation: Tree  # [...] the true last one
    episode: EpisodeEnd


@dataclass(frozen=True, slots=True)
class EndedEpisodes:
    """The E episodes that ended in a fragment."""

    index: np.ndarray  # [E, 2] int64: (t, n)
    observation: Tree  # [E, ...] the true last ones
    episodes: tuple[EpisodeEnd, ...]

    @staticmethod
    def of(ends: list[EndedEpisode], like: Tree) -> EndedEpisodes:
        """In the order of `ends`; `like` is a tree [0, ...] of their observations."""
        observation = trees.stack([end.observation for end in ends]) if ends else like
        index = np.array([(end.t, end.column) for end in ends], np.int64).reshape(-1, 2)
        return EndedEpisodes(index, observation, tuple(end.episode for end in ends))

    @staticmethod
    def of_steps(steps: Steps) -> EndedEpisodes:
        """Those of collected steps."""
        return EndedEpisodes(steps.final_index, steps.final_observation, steps.episodes)

    @staticmethod
    def join(parts: list[EndedEpisodes], places: list[tuple[int, int]]) -> EndedEpisodes:
        """Those of several fragments, whose first rows are at these places (t, n)."""
        index = np.concatenate([part.index + place for part, place in zip(parts, places, strict=True)])
        observation = trees.concatenate([part.observation for part in parts])
        joined = EndedEpisodes(index, observation, tuple(end for part in parts for end in part.episodes))
        return joined.take(np.lexsort((index[:, 1], index[:, 0])))

    def of_these(self) -> dict[str, Any]:
        """What `Steps` say of them."""
        return {"final_observation": self.observation, "final_index": self.index, "episodes": self.episodes}

    def take(self, order: np.ndarray) -> EndedEpisodes:
        """Some of them, in this order."""
        episodes = tuple(self.episodes[i] for i in order.tolist())
        return EndedEpisodes(self.index[order], trees.rows(self.observation, order), episodes)


ROWS = ("observation", "action", "reward", "terminated", "truncated", "extras")  # fields of `Rows` and of `Steps`


@dataclass(frozen=True, slots=True)
class Rows:
    """Arrays for T time steps of N environments, and for the observation after the last."""

    observation: Tree  # [T + 1, N, ...]
    action: np.ndarray  # [T, N, ...]
    reward: np.ndarray  # [T, N] float32
    terminated: np.ndarray  # [T, N] bool
    truncated: np.ndarray  # [T, N] bool
    extras: dict[str, np.ndarray]  # [T, N, ...]

    @staticmethod
    def allocate(template: Template, steps: int, environments: int, new: Allocate = np.empty) -> Rows:
        """Rows for `steps` time steps; `new(shape, dtype)` allocates an array."""
        observed, flat = (steps + 1, environments), (steps, environments)
        action, reward = template.action, template.reward
        return Rows(
            trees.map(lambda leaf: new((*observed, *leaf.shape[1:]), leaf.dtype), template.observation),
            new((*flat, *action.shape[1:]), action.dtype),
            new((*flat, *reward.shape[1:]), reward.dtype),
            new(flat, np.dtype(bool)),
            new(flat, np.dtype(bool)),
            {name: new((*flat, *value.shape[1:]), value.dtype) for name, value in template.extras.items()},
        )

    @staticmethod
    def over(buffer: Any, template: Template, steps: int, environments: int) -> Rows:
        """Rows in a buffer. The same arguments give the same layout in every process."""
        return Rows.allocate(template, steps, environments, Carver(buffer))

    def place(self, other: Rows, start: int, columns: slice) -> None:
        """Copy the time steps of `other` to these columns, from time step `start` on."""
        steps, n = len(other.reward), columns.stop - columns.start
        here, there = (slice(start, start + steps), columns), (slice(0, steps), slice(0, n))
        one_more = (slice(start, start + steps + 1), columns)
        trees.put(self.observation, one_more, trees.rows(other.observation, (slice(0, steps + 1), there[1])))
        for name in ROWS[1:]:
            trees.put(getattr(self, name), here, trees.rows(getattr(other, name), there))

    def between(self, columns: slice | list[int], times: slice = slice(None)) -> Rows:
        """Some columns, and some time steps of them; the arrays of slices are shared, not copied."""
        return Rows(**{name: trees.rows(getattr(self, name), (times, columns)) for name in ROWS})

    def to_steps(self, ends: EndedEpisodes, columns: np.ndarray, restarted: np.ndarray) -> Steps:
        """These rows as `Steps`; the arrays are shared, not copied.

        ends: sorted by t, then n. columns: the numbers of the environments.
        """
        rows = {name: getattr(self, name) for name in ROWS}
        rows |= {"observation": trees.rows(self.observation, slice(0, len(self.reward))), "extras": dict(self.extras)}
        following = trees.rows(self.observation, len(self.reward))
        return Steps(**rows, **ends.of_these(), next_observation=following, columns=columns, restarted=restarted)


def joined(parts: Sequence[Steps]) -> Steps:
    """Steps of environments that stand side by side, or of the same ones that follow one another. All environments have
    as many in the end; what `restarted` says of later parts of an environment is left out."""
    if len(parts) == 1:
        return parts[0]
    columns = np.unique(np.concatenate([part.columns for part in parts]))
    taken, places = np.zeros(len(columns), np.int64), []
    restarted = np.zeros(len(columns), bool)
    for part in parts:
        at = np.searchsorted(columns, part.columns)
        places.append((int(taken[at[0]]), int(at[0])))
        restarted[at] |= part.restarted & (taken[at] == 0)
        taken[at] += part.shape[0]
    ends = EndedEpisodes.join([EndedEpisodes.of_steps(part) for part in parts], places)

    def placed(*arrays: np.ndarray) -> np.ndarray:
        found = np.empty((int(taken[0]), len(columns), *arrays[0].shape[2:]), arrays[0].dtype)
        for (t, n), array in zip(places, arrays, strict=True):
            found[t : t + array.shape[0], n : n + array.shape[1]] = array
        return found

    def newest(*arrays: np.ndarray) -> np.ndarray:
        found = np.empty((len(columns), *arrays[0].shape[1:]), arrays[0].dtype)
        for (_, n), array in zip(places, arrays, strict=True):
            found[n : n + len(array)] = array
        return found

    rows = {name: trees.map(placed, *(getattr(part, name) for part in parts)) for name in ROWS}
    following = trees.map(newest, *(part.next_observation for part in parts))
    return Steps(**rows, **ends.of_these(), next_observation=following, columns=columns, restarted=restarted)


def row_bytes(template: Template) -> int:
    """Bytes of one time step of one environment."""
    leaves = [*trees.leaves(template.observation), template.action, template.reward, *template.extras.values()]
    return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves) + 2


def capacity(template: Template, environments: int, size: int) -> int:
    """How many time steps fit into a buffer of `size` bytes; may be 0."""
    arrays = len(trees.leaves(template.observation)) + len(template.extras) + 4
    return (size - arrays * ALIGNMENT) // (row_bytes(template) * environments) - 1
