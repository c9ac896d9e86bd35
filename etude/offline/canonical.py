"""Values as environments have them, turned into what agents see, and back.

Files hold the environment's own numbers, so that other programs can read them. Agents choose Box actions from the
canonical space (`base.spaces.scale`), and count everything from 0: `envs.actions` turns one action at a time into those
of the environment, these functions do the same for whole columns in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
