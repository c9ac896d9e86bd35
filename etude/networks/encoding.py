"""From observations to what layers take: one float32 vector, and images.

Discrete values become one-hot vectors, MultiDiscrete ones joined one-hot vectors, everything else is flattened. Parts
of a Dict or Tuple are joined in the order of `trees`. The action mask is not an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.base import spaces
from etude.base.errors import NetworkError
from etude.base.spaces import ACTION_MASK, Box, Discrete, Hybrid, MultiDiscrete, Space, Tokens, is_float_image, is_image
from etude.base.trees import Tree
from etude.networks.specs import Filters, filters_for

Path = tuple[Any, ...]
WIDEST = 4_000_000  # numbers of a text in tokens


def leaves(space: Space) -> list[tuple[Path, Space]]:
    """The (path, space) of every part of a space that a network reads."""
    return [(path, leaf) for path, leaf in spaces.leaves(space) if ACTION_MASK not in path]


def width(space: Space) -> int:
    """The length of the vector that a part which is not an image becomes."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        size = int(space.nvec.sum())
        if isinstance(space, Tokens) and size > WIDEST:
            raise NetworkError(
                f"A game of {space.context:,} tokens of {len(space.vocabulary):,} different ones is {size:,} one-hot "
                f"numbers, and a layer has weights for at most {WIDEST:,}. Give TokenEnvironment a smaller context, or "
                "take an algorithm that reads whole games (bc, ilql, grpo, ...), whose network is a Transformer."
            )
        return size
    if isinstance(space, Hybrid):
        return width(space.numbers) + width(space.choices)
    return math.prod(space.shape or ())


class Image(NamedTuple):
    """How a part that holds images becomes [B, height, width, channels] in [0, 1].

    (height, width), (height, width, channels), or channels first where there are fewer of them than pixels in either
    direction, as Gymnasium stacks grey frames; with a dimension before these, that many images are stacked, and all
    their channels are channels.
    """

    height: int
    width: int
    channels: int
    stacked: int  # images along a first dimension; 0: there is none
    channels_first: bool
    highest: float  # what stands for 1

    @classmethod
    def of(cls, space: Box) -> Image:
        stacked, shape = (space.shape[0], space.shape[1:]) if len(space.shape) == 4 else (0, space.shape)
        most = float(space.high.max())
        highest = max(most, 1.0) if math.isfinite(most) else 1.0
        if len(shape) == 2:
            return cls(*shape, 1, stacked, False, highest)
        first = shape[0] < min(shape[1:])
        height, width, channels = (*shape[1:], shape[0]) if first else shape
        return cls(height, width, channels * max(stacked, 1), stacked, first, highest)

    def __call__(self, x: Any) -> Any:
        x = ops.cast(x, "float32") / self.highest
        each = self.channels // max(self.stacked, 1)
        own = (each, self.height, self.width) if self.channels_first else (self.height, self.width, each)
        x = ops.reshape(x, (-1, *own))
        x = ops.swapaxes(ops.swapaxes(x, 1, 3), 1, 2) if self.channels_first else x
        if not self.stacked:
            return x
        # The channels of all images of the stack become the last dimension.
        x = ops.reshape(x, (-1, self.stacked, self.height * self.width, each))
        return ops.reshape(ops.swapaxes(x, 1, 2), (-1, self.height, self.width, self.channels))


def at(observation: Tree, path: Path) -> Any:
    """The part of an observation under a path."""
    for key in path:
        observation = observation[key]
    return observation


def replaced(observation: Tree, path: Path, value: Any) -> Tree:
    """The observation with this value under a path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(observation, dict):
        return {**observation, key: replaced(observation[key], rest, value)}
    return tuple(replaced(part, rest, value) if i == key else part for i, part in enumerate(observation))


def _one_hots(x: Any, sizes: list[int]) -> Any:
    flat = ops.reshape(x, (-1, len(sizes)))
    if len(set(sizes)) == 1:
        return ops.reshape(ops.one_hot(flat, sizes[0]), (-1, sum(sizes)))
    return ops.concatenate([ops.one_hot(flat[:, i], size) for i, size in enumerate(sizes)], -1)


def to_vector(space: Space) -> Callable[[Any], Any]:
    """The function that turns a batch of values of a part that is not an image into [B, width] float32."""
    if isinstance(space, Discrete):
        return lambda x: ops.one_hot(x, int(space.n))
    if isinstance(space, MultiDiscrete):
        sizes = spaces.choices(space)
        return lambda x: _one_hots(x, sizes)
    if isinstance(space, Hybrid):
        numbers, of_choices = width(space.numbers), to_vector(space.choices)
        return lambda x: ops.concatenate([x[..., :numbers], of_choices(ops.cast(x[..., numbers:], "int32"))], -1)
    size = width(space)
    if is_image(space):
        highest = Image.of(space).highest
        return lambda x: ops.reshape(ops.cast(x, "float32"), (-1, size)) / highest
    if isinstance(space, Box) and space.dtype in (np.float32, np.float64) and space.shape == (size,):
        return lambda x: x
    return lambda x: ops.reshape(ops.cast(x, "float32"), (-1, size))


def fitting_filters(space: Space, floats: bool = False) -> Filters | None:
    """Convolutions that fit every image of an observation space; None where there are none. floats: see `split`."""
    parts: list[tuple[Any, Any]] = split(space, floats)[1]
    images = [Image.of(part) for _, part in parts]
    return filters_for(min(min(image.height, image.width) for image in images)) if images else None


def split(space: Space, floats: bool = False) -> tuple[list[tuple[Path, Space]], list[tuple[Path, Space]]]:
    """The parts that become vectors, and the images. floats: whether images of floats are images."""
    found = [(leaf, is_image(leaf[1]) or floats and is_float_image(leaf[1])) for leaf in leaves(space)]
    return [leaf for leaf, image in found if not image], [leaf for leaf, image in found if image]
