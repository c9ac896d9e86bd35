"""Random shifts of images: pad by repeating the border, crop at a random place.

Yarats, Kostrikov & Fergus 2021, Image augmentation is all you need, arXiv:2004.13649 (DrQ), where it is 4 pixels. With
K = M = 1: one shift of the observation and another of the next one, as in DrQ-v2, arXiv:2107.09645.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from etude import ops
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Space, describe
from etude.base.trees import Tree
from etude.networks.encoding import Image, at, replaced, split


class RandomShift:
    """Shifts the images of a batch, each transition's by its own offsets. All frames of a stack and all images of an
    observation are shifted alike.

    noise: shapes of the standard normal arrays that it takes, [B, *shape] by name; none where pixels is 0. Noise of 0
        shifts nothing.
    Raises ConfigError where pixels is not 0 and the space has no image.
    """

    def __init__(self, space: Space, pixels: int):
        self.pixels = pixels
        self.noise: dict[str, tuple[int, ...]] = {"random_shift": (2, 2, 3)} if pixels else {}
        images: list[tuple[Any, Any]] = split(space)[1] if pixels else []
        self._images = [(path, part.shape, Image.of(part)) for path, part in images]
        if pixels and not self._images:
            raise ConfigError(
                f"random_shift = {pixels} shifts images, and the observation is {describe(space)}, without one. Leave "
                "it at 0."
            )

    def __call__(self, batch: Batch, noise: Mapping[str, Any]) -> Batch:
        """The batch with its observations and its next observations shifted."""
        if not self.pixels:
            return batch
        offsets = self._offsets(noise["random_shift"])
        return dataclasses.replace(
            batch,
            observation=self._shifted(batch.observation, offsets[:, 0]),
            next_observation=self._shifted(batch.next_observation, offsets[:, 1]),
        )

    def _offsets(self, noise: Any) -> Any:
        """Uniform whole numbers from -pixels to pixels, int32 [...], from standard normal ones [..., 3].

        Half the sum of two squared normal numbers is exponential, and exp(-x) of that uniform; the third gives a sign.
        """
        size = 1.0 - ops.exp(-0.5 * ops.sum(ops.square(noise[..., :2]), -1))
        uniform = (1.0 + ops.sign(noise[..., 2]) * size) * (self.pixels + 0.5)
        return ops.minimum(ops.cast(uniform, "int32"), 2 * self.pixels) - self.pixels

    def _shifted(self, observation: Tree, offsets: Any) -> Tree:
        for path, shape, image in self._images:
            observation = replaced(observation, path, _shifted(at(observation, path), shape, image, offsets))
        return observation


def _shifted(x: Any, shape: tuple[int, ...], image: Image, offsets: Any) -> Any:
    """Images [B, *shape] that show at (i, j) what was at (i, j) + offset [B, 2], or at the border beyond it."""
    height, width = image.height, image.width
    row, column = _within(offsets[:, :1], height), _within(offsets[:, 1:], width)
    place = ops.reshape(ops.expand_dims(row * width, 2) + ops.expand_dims(column, 1), (-1, height * width))
    after = 1 if image.channels_first else image.channels // max(image.stacked, 1)
    before = math.prod(shape) // (height * width * after)
    pixels = ops.swapaxes(ops.reshape(x, (-1, before, height * width, after)), 1, 2)
    return ops.reshape(ops.swapaxes(ops.gather(pixels, place), 1, 2), (-1, *shape))


def _within(offset: Any, n: int) -> Any:
    """The n positions from an offset [B, 1] on, each moved to the nearest of 0..n-1: int32 [B, n]."""
    return ops.clip(ops.cast(ops.linspace(0.5, n - 0.5, n, offset), "int32") + offset, 0, n - 1)
