"""Values as environments have them, turned into what agents see, and back.

Files hold the environment's own numbers, so that other programs can read them. Agents choose Box actions from the
canonical space (`base.spaces.scale`), and count everything from 0: `envs.actions` turns one action at a time into those
of the environment, these functions do the same for whole columns in both directions.
"""

from __future__ import annotations

import numpy as np

from etude.base.spaces import Box, Discrete, MultiDiscrete, Space, Spaces, from_zero, scale, storage_dtype

ROUNDING = 1e-5  # how far outside [-1, 1] an action may be that was at a bound and was rounded


def canonical_spaces(spaces: Spaces) -> Spaces:
    """What agents see of an environment with these spaces."""
    action = spaces.action
    if isinstance(action, Box):
        action = scale(action)[2]
    return Spaces(from_zero(spaces.observation), from_zero(action))


def actions_in(space: Space, values: np.ndarray) -> np.ndarray:
    """The environment's actions [M, ...] as an agent's."""
    if isinstance(space, Box):
        middle, half, own = scale(space)
        return np.clip((values - middle) / half, own.low, own.high).astype(np.float32)
    return counted_from_zero(space, values)


def actions_out(space: Space, values: np.ndarray) -> np.ndarray:
    """An agent's actions [M, ...] as the environment's, in its dtype; those outside the bounds are clipped, as
    environments do with them."""
    if isinstance(space, Box):
        middle, half, agents = scale(space)
        own = middle + half * np.clip(values, agents.low, agents.high)
        if storage_dtype(space).kind != "f":
            own = np.rint(own)
        return np.clip(own, space.low, space.high).astype(storage_dtype(space))
    return counted_from_start(space, values)


def outside(space: Space, values: np.ndarray) -> np.ndarray:
    """[M] which of the environment's actions [M, ...] do not belong to its space."""
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
    """Values [M, ...] of a Discrete or MultiDiscrete space without its `start`; others are cast to what is kept."""
    start = space.start if isinstance(space, Discrete | MultiDiscrete) else 0
    return (values - start).astype(storage_dtype(space)) if np.any(start) else values.astype(storage_dtype(space))


def counted_from_start(space: Space, values: np.ndarray) -> np.ndarray:
    """The inverse of `counted_from_zero`."""
    start = space.start if isinstance(space, Discrete | MultiDiscrete) else 0
    return (values + start).astype(storage_dtype(space))
