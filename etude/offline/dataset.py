"""Episodes in memory, the way from them into a replay, and from the values of environments to what agents see.

Files hold the environment's own numbers, so that other programs can read them. Agents choose Box actions from the
canonical space (`base.spaces.scale`), and count everything from 0: `envs.actions` turns one action at a time into those
of the environment, the functions here do the same for whole columns in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Episode, EpisodeEnd, Steps, return_text
from etude.base.errors import DataError
from etude.base.spaces import (
    ActionLayout,
    Box,
    Discrete,
    MultiDiscrete,
    Shifted,
    Space,
    Spaces,
    from_zero,
    leaves,
    scale,
    storage_dtype,
)

ROUNDING = 1e-5  # how far outside [-1, 1] an action may be that was at a bound and was rounded


def canonical_spaces(spaces: Spaces) -> Spaces:
    """What agents see of an environment with these spaces."""
    return Spaces(from_zero(spaces.observation), _layout(spaces.action).space)


def actions_in(space: Space, each: Sequence[np.ndarray]) -> np.ndarray:
    """The environment's actions, [M, ...] of each leaf of its space, as an agent's [M, ...]."""
    pairs = zip(leaves(space), each, strict=True)
    return _layout(space).join([_leaf_in(leaf, values) for (_, leaf), values in pairs])


def actions_out(space: Space, values: np.ndarray) -> list[np.ndarray]:
    """An agent's actions [M, ...] as the environment's, [M, ...] of each leaf of its space in its dtype; those outside
    the bounds are clipped, as environments do with them."""
    pairs = zip(leaves(space), _layout(space).split(values), strict=True)
    return [_leaf_out(leaf, own) for (_, leaf), own in pairs]


def _layout(space: Space) -> ActionLayout:
    own = [leaf for _, leaf in leaves(space)]
    return ActionLayout(space, [scale(leaf)[2] if isinstance(leaf, Box) else from_zero(leaf) for leaf in own])


def _leaf_in(space: Space, values: np.ndarray) -> np.ndarray:
    if isinstance(space, Box):
        middle, half, own = scale(space)
        return np.clip((values - middle) / half, own.low, own.high).astype(np.float32)
    return counted_from_zero(space, values)


def _leaf_out(space: Space, values: np.ndarray) -> np.ndarray:
    if isinstance(space, Box):
        middle, half, agents = scale(space)
        own = middle + half * np.clip(values, agents.low, agents.high)
        if storage_dtype(space).kind != "f":
            own = np.rint(own)
        return np.clip(own, space.low, space.high).astype(storage_dtype(space))
    return counted_from_start(space, values)


def outside(space: Space, values: np.ndarray) -> np.ndarray:
    """[M] which of the environment's actions [M, ...] do not belong to its space, a leaf."""
    if isinstance(space, Box):
        middle, half, own = scale(space)
        scaled = (values - middle) / half
        wrong = (scaled < own.low - ROUNDING) | (scaled > own.high + ROUNDING)
    elif isinstance(space, Discrete | MultiDiscrete):
        size = space.n if isinstance(space, Discrete) else space.nvec
        wrong = (values < space.start) | (values >= space.start + size)
    else:
        wrong = (values != 0) & (values != 1)
    return wrong.reshape(len(values), -1).any(1)


def counted_from_zero(space: Space, values: np.ndarray) -> np.ndarray:
    """Values [M, ...] of a Discrete or MultiDiscrete space without its `start`, of a `Shifted` one without its origin;
    others are cast to what is kept."""
    start = _start(space)
    return (values - start).astype(storage_dtype(space)) if np.any(start) else values.astype(storage_dtype(space))


def counted_from_start(space: Space, values: np.ndarray) -> np.ndarray:
    """The inverse of `counted_from_zero`."""
    if isinstance(space, Shifted):
        whole = space.origin.dtype.kind == "i"
        return space.origin + (np.rint(values) if whole else values).astype(space.origin.dtype)
    return (values + _start(space)).astype(storage_dtype(space))


def _start(space: Space) -> Any:
    if isinstance(space, Shifted):
        return space.origin
    return space.start if isinstance(space, Discrete | MultiDiscrete) else 0


@dataclass(frozen=True)
class Dataset:
    """Episodes as agents see them, and where they are from."""

    episodes: tuple[Episode, ...]
    source: Spaces  # the environment's own: what its actions are scaled to, and counted from, in files
    environment: str | None = None  # the id of the environment that was played, where that is known
    dropped: int = 0  # transitions of a file that were left out, because nobody knows what followed them

    def __repr__(self) -> str:
        earned = f", mean return {return_text(self.returns.mean())}" if self.episodes else ""
        played = f" of {self.environment}" if self.environment else ""
        return f"<Dataset{played}: {len(self.episodes):,} episodes, {len(self):,} transitions{earned}>"

    def __len__(self) -> int:
        """The number of transitions."""
        return sum(len(episode.reward) for episode in self.episodes)

    @property
    def spaces(self) -> Spaces:
        """The canonical ones, of these episodes: Box actions in [-1, 1], everything counted from 0."""
        return canonical_spaces(self.source)

    @property
    def returns(self) -> np.ndarray:
        """[E] the undiscounted return of every episode."""
        return np.array([episode.reward.sum(dtype=np.float64) for episode in self.episodes])

    def summary(self) -> dict[str, Any]:
        """The data in plain numbers."""
        return {
            "transitions": len(self),
            "episodes": len(self.episodes),
            "dropped": self.dropped,
            "mean_return": float(self.returns.mean()),
            "environment": self.environment,
        }

    def steps(self) -> Steps:
        """All episodes, one after the other, as `Steps` of one environment."""
        return to_steps(self.episodes)


def to_steps(episodes: Sequence[Episode]) -> Steps:
    """Episodes one after the other, as `Steps` of one environment, for `Ring.add`: every view of a replay then works.
    (A ring with room for one transition more remembers that the first one begins an episode.)

    An episode that is marked neither terminated nor truncated was still open: it is taken for truncated, since nothing
    continues it.
    """
    if not episodes:
        raise DataError("There are no episodes to learn from; expected at least one of at least one transition.")
    names = set(episodes[0].extras)
    for i, episode in enumerate(episodes):
        if not len(episode.reward) or set(episode.extras) != names:
            raise DataError(
                f"Episode {i} has {len(episode.reward)} transitions and the extras {sorted(episode.extras)}; expected "
                f"at least one transition, and the extras {sorted(names)} as in the first episode."
            )
    lengths = np.array([len(episode.reward) for episode in episodes])
    last = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros((lengths.sum(), 1), bool), np.zeros((lengths.sum(), 1), bool)
    terminated[last, 0] = [episode.terminated for episode in episodes]
    truncated[last, 0] = [episode.truncated or not episode.terminated for episode in episodes]
    finals = trees.stack([trees.rows(episode.observation, -1) for episode in episodes])
    return Steps(
        observation=_column([trees.rows(episode.observation, slice(0, -1)) for episode in episodes]),
        action=_column([episode.action for episode in episodes]),
        reward=_column([np.asarray(episode.reward, np.float32) for episode in episodes]),
        terminated=terminated,
        truncated=truncated,
        next_observation=trees.rows(finals, slice(-1, None)),  # nothing follows: no row is ever joined to it
        final_observation=finals,
        final_index=np.stack([last, np.zeros_like(last)], -1),
        columns=np.zeros(1, np.int64),
        restarted=np.ones(1, bool),
        extras={name: _column([episode.extras[name] for episode in episodes]) for name in sorted(names)},
        episodes=tuple(
            EpisodeEnd(0, i, len(episode.reward), float(episode.reward.sum()), not episode.terminated)
            for i, episode in enumerate(episodes)
        ),
    )


def _column(parts: list[Any]) -> trees.Tree:
    """[L, ...] of every episode, joined: [T, 1, ...]."""
    return trees.map(lambda leaf: leaf[:, None], trees.concatenate(parts))
