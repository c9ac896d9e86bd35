"""From observations to what layers take: one float32 vector, and images.

Discrete values become one-hot vectors, MultiDiscrete ones joined one-hot vectors, everything else is flattened. Parts
of a Dict or Tuple are joined in the order of `trees`. The action mask is not an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from etude import ops
from etude.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete, Space, is_image, parts
from etude.trees import Tree

Path = tuple[Any, ...]


def leaves(space: Space, path: Path = ()) -> list[tuple[Path, Space]]:
    """The (path, space) of every part of a space that a network reads."""
    inner = parts(space)
    if not inner:
        return [(path, space)]
    return [leaf for key, part in inner if key != ACTION_MASK for leaf in leaves(part, (*path, key))]


def width(space: Space) -> int:
    """The length of the vector that a part which is not an image becomes."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def at(observation: Tree, path: Path) -> Any:
    """The part of an observation under a path."""
    for key in path:
        observation = observation[key]
    return observation


def _one_hots(x: Any, sizes: list[int]) -> Any:
    flat = ops.reshape(x, (-1, len(sizes)))
    return ops.concatenate([ops.one_hot(flat[:, i], size) for i, size in enumerate(sizes)], -1)


def to_vector(space: Space) -> Callable[[Any], Any]:
    """The function that turns a batch of values of a part that is not an image into [B, width] float32."""
    if isinstance(space, Discrete):
        return lambda x: ops.one_hot(x, int(space.n))
    if isinstance(space, MultiDiscrete):
        sizes = [int(n) for n in space.nvec.reshape(-1)]
        return lambda x: _one_hots(x, sizes)
    size = width(space)
    if isinstance(space, Box) and space.dtype in (np.float32, np.float64) and space.shape == (size,):
        return lambda x: x
    return lambda x: ops.reshape(ops.cast(x, "float32"), (-1, size))


def split(space: Space) -> tuple[list[tuple[Path, Space]], list[tuple[Path, Space]]]:
    """The parts that become vectors, and the images."""
    found = leaves(space)
    return [leaf for leaf in found if not is_image(leaf[1])], [leaf for leaf in found if is_image(leaf[1])]
