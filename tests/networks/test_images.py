"""Which observations are images, and the networks that fit them."""

import dataclasses
import warnings

import numpy as np
import pytest

from etude.algorithms.dqn import DQNConfig
from etude.base.spaces import Box, Dict, Discrete, Spaces, is_image
from etude.engines.numpy import NumpyEngine
from etude.networks import Conv, Mlp
from etude.networks.encoding import Image
from etude.networks.specs import NATURE, filters_for
from etude.training.assembly.agents import agent_for


def bytes_of(*shape, high=255):
    return Box(0, high, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((84, 84, 4), (84, 84, 4)),
        ((4, 84, 84), (84, 84, 4)),  # AtariPreprocessing and FrameStackObservation
        ((84, 84), (84, 84, 1)),
        ((3, 96, 96), (96, 96, 3)),
        ((4, 84, 84, 3), (84, 84, 12)),
        ((210, 160, 3), (210, 160, 3)),
        ((7, 7, 3), (7, 7, 3)),
    ],
)
def test_height_width_and_channels_are_found_in_any_order(shape, found):
    assert is_image(bytes_of(*shape))
    image = Image.of(bytes_of(*shape))
    assert (image.height, image.width, image.channels) == found


@pytest.mark.parametrize("space", [bytes_of(128), bytes_of(8, 8), bytes_of(2, 40), Box(-1, 1, (84, 84, 3), np.float32)])
def test_vectors_small_boards_and_floats_are_no_images(space):
    assert not is_image(space)


@pytest.mark.parametrize("side", range(1, 100))
def test_there_are_convolutions_for_images_of_any_size(side):
    for _, kernel, stride in filters_for(side):
        side = (side - kernel) // stride + 1
    assert side >= 1


def test_the_largest_convolutions_are_those_of_the_nature_paper():
    assert Conv().filters == filters_for(84) == filters_for(36) == NATURE


def agent_over(space, config=None):
    return agent_for("dqn", None, config, Spaces(space, Discrete(2)))[1]


def test_the_default_network_gives_way_to_convolutions_that_fit():
    assert agent_over(bytes_of(4, 84, 84)).config.network == Conv()
    assert agent_over(bytes_of(7, 7, 3)).config.network.filters == filters_for(7)
    changed = dataclasses.replace(DQNConfig(), learning_rate=1e-3)
    assert isinstance(agent_over(bytes_of(84, 84), changed).config.network, Conv)
    assert isinstance(agent_over(bytes_of(8, 8)).config.network, Mlp)


def test_a_network_that_was_asked_for_stays_also_where_it_equals_the_default():
    asked = DQNConfig(network=Mlp(DQNConfig().network.widths))
    assert asked == DQNConfig()
    assert agent_over(bytes_of(84, 84, 3), asked).config.network is asked.network


def test_values_are_scaled_by_the_highest_that_there_may_be():
    assert Image.of(bytes_of(20, 20, 3)).highest == 255
    np.testing.assert_array_equal(Image.of(bytes_of(20, 20, 3, high=1))(np.ones((1, 20, 20, 3), np.uint8)), 1.0)


@pytest.mark.parametrize(("shape", "numbers"), [((84, 84, 3), "21,168"), ((3, 16, 16), "768")])
def test_images_of_floats_are_vectors_with_a_warning_and_convolved_where_that_is_asked_for(shape, numbers):
    space = Dict({"eye": Box(0, 1, shape, np.float32), "speed": Box(-1, 1, (3, 2), np.float32)})
    told = rf"'eye' is an image of float32, Box\({shape[0]}, .*one vector of {numbers} numbers.*--network conv"
    with pytest.warns(UserWarning, match=told):
        agent = agent_over(space)
    assert isinstance(agent.config.network, Mlp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent_over(space, DQNConfig(network=Mlp((4,))))
        agent = agent_over(space, DQNConfig(network=Conv(widths=(4,))))
    assert agent.config.network.filters == filters_for(84 if 84 in shape else 16)
    engine = NumpyEngine(agent, Spaces(space, Discrete(2)))
    seen = {"eye": np.random.default_rng(0).random((2, *shape), np.float32), "speed": np.zeros((2, 3, 2), np.float32)}
    first, second = engine.act(seen)
    assert any(len(value.shape) == 4 for value in engine.weights().values()) and not np.allclose(first, second)
