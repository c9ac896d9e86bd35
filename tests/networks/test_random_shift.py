"""Random shifts of images against padding and cropping in plain NumPy."""

import numpy as np
import pytest

from etude.algorithms import SAC, SACConfig
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Dict, Spaces
from etude.engines.numpy import NumpyEngine
from etude.networks.random_shift import RandomShift

LAYOUTS = {  # shape of the space: where its rows and columns are
    (12, 10, 3): (0, 1),
    (3, 12, 10): (1, 2),
    (18, 20): (0, 1),
    (2, 12, 10, 3): (1, 2),
    (2, 3, 12, 10): (2, 3),
}


def image_of(*shape):
    return Box(0, 255, shape, np.uint8)


def batch_of(observation, following):
    n = 64
    zeros = np.zeros(n, np.float32)
    return Batch(observation, zeros, zeros, zeros, following, zeros, np.arange(n))


def padded_and_cropped(image, axes, pixels, offset):
    """The image padded at its border by repetition, and what is left of it from the offset on."""
    padded = np.pad(image, [(pixels, pixels) if axis in axes else (0, 0) for axis in range(image.ndim)], "edge")
    for axis, start in zip(axes, offset, strict=True):
        padded = np.take(padded, np.arange(start, start + image.shape[axis]), axis)
    return padded


@pytest.mark.parametrize("shape", LAYOUTS)
def test_a_shift_is_a_crop_of_the_padded_image_at_a_random_place(shape):
    rng, pixels = np.random.default_rng(0), 2
    images = rng.integers(0, 256, (2, 64, *shape)).astype(np.uint8)
    shift = RandomShift(image_of(*shape), pixels)
    noise = {name: rng.standard_normal((64, *each), np.float32) for name, each in shift.noise.items()}
    found = shift(batch_of(*images), noise)
    offsets = set()
    for given, shifted in zip(images, (found.observation, found.next_observation), strict=True):
        assert shifted.dtype == np.uint8
        for image, moved in zip(given, shifted, strict=True):
            places = [(i, j) for i in range(2 * pixels + 1) for j in range(2 * pixels + 1)]
            alike = [p for p in places if np.array_equal(padded_and_cropped(image, LAYOUTS[shape], pixels, p), moved)]
            assert len(alike) == 1
            offsets.update(alike)
    assert len(offsets) == 25


def test_every_offset_is_as_likely():
    shift = RandomShift(image_of(12, 12, 1), 4)
    columns = np.broadcast_to(np.arange(12, dtype=np.uint8), (20_000, 12, 12))[..., None]
    noise = np.random.default_rng(0).standard_normal((20_000, 2, 2, 3), np.float32)
    moved = shift(batch_of(columns, columns), {"random_shift": noise}).observation
    offsets, counts = np.unique(moved[:, 0, 6, 0].astype(int) - 6, return_counts=True)
    np.testing.assert_array_equal(offsets, np.arange(-4, 5))
    np.testing.assert_allclose(counts / 20_000, 1 / 9, atol=0.01)


def test_observation_and_next_observation_are_shifted_independently():
    shift = RandomShift(image_of(12, 10, 1), 4)
    images = np.random.default_rng(0).integers(0, 256, (64, 12, 10, 1)).astype(np.uint8)
    noise = np.random.default_rng(1).standard_normal((64, 2, 2, 3), np.float32)
    found = shift(batch_of(images, images), {"random_shift": noise})
    alike = (found.observation == found.next_observation).all((1, 2, 3))
    assert alike.sum() < 5


def test_noise_of_zero_and_parts_that_are_no_images_are_not_shifted():
    camera, speed = image_of(12, 10, 3), Box(-1, 1, (5,), np.float32)
    shift = RandomShift(Dict({"camera": camera, "speed": speed}), 4)
    rng = np.random.default_rng(0)
    seen = {"camera": rng.integers(0, 256, (64, 12, 10, 3)).astype(np.uint8), "speed": rng.random((64, 5))}
    still = shift(batch_of(seen, seen), {"random_shift": np.zeros((64, 2, 2, 3), np.float32)})
    np.testing.assert_array_equal(still.observation["camera"], seen["camera"])
    moved = shift(batch_of(seen, seen), {"random_shift": rng.standard_normal((64, 2, 2, 3), np.float32)})
    assert not np.array_equal(moved.observation["camera"], seen["camera"])
    assert moved.observation["speed"] is seen["speed"]


def test_without_shifts_the_batch_is_the_same_object_and_no_noise_is_drawn():
    shift, batch = RandomShift(image_of(12, 10, 3), 0), batch_of(np.zeros(64), np.zeros(64))
    assert shift.noise == {} and shift(batch, {}) is batch


def test_shifts_of_observations_without_an_image_are_refused():
    vector = Spaces(Box(-1, 1, (5,), np.float32), Box(-1, 1, (2,), np.float32))
    with pytest.raises(ConfigError, match=r"random_shift = 4 shifts images.*without one. Leave it at 0"):
        NumpyEngine(SAC(SACConfig(random_shift=4)), vector)
    with pytest.raises(ConfigError, match="random_shift"):
        SACConfig(random_shift=-1)
