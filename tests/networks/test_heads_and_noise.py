"""Dueling heads and noisy layers, in NumPy, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from etude import Conv, Mlp
from etude.algorithms import DQNConfig, RainbowConfig, SACConfig, find
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.networks import Maker

VECTOR = Box(-1.0, 1.0, (5,), np.float32)
BOX2 = Box(-1.0, 1.0, (2,), np.float32)
X = np.random.default_rng(3).uniform(-1, 1, (7, 5)).astype(np.float32)


def values(spec, numbers=None, actions=3):
    return Maker(np.random.default_rng(1), None).values(spec, VECTOR, actions, numbers)


def dense(part, name, x):
    return x @ part.variables[f"{name}.weight"] + part.variables[f"{name}.bias"]


def stream(part, name, x):
    return dense(part, f"{name}.dense2", np.tanh(dense(part, f"{name}.dense1", x)))


@pytest.mark.parametrize("numbers", [None, 4])
def test_a_dueling_network_is_the_value_and_what_the_advantages_are_above_their_mean(numbers):
    part = values(Mlp((8, 6), "tanh", dueling=True), numbers)
    shared = np.tanh(dense(part, "dense0", X))
    value, advantage = stream(part, "value", shared), stream(part, "advantage", shared)
    if numbers is None:
        expected = value + advantage - advantage.mean(1, keepdims=True)
    else:
        advantage = advantage.reshape(7, 3, 4)
        expected = value[:, None] + advantage - advantage.mean(1, keepdims=True)
    np.testing.assert_allclose(part(X), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(part(X).mean(1), value[:, 0] if numbers is None else value, rtol=1e-4, atol=1e-6)


def test_the_streams_of_a_dueling_network_over_images_are_those_of_the_paper():
    image = Box(0, 255, (84, 84, 4), np.uint8)
    part = Maker(np.random.default_rng(1), None).values(Conv(dueling=True), image, 6)
    shapes = {name: value.shape for name, value in part.variables.items() if "dense" in name and "weight" in name}
    assert shapes == {
        "value.dense0.weight": (3136, 512), "value.dense1.weight": (512, 1),
        "advantage.dense0.weight": (3136, 512), "advantage.dense1.weight": (512, 6),
    }  # fmt: skip


def rooted(noise):
    return np.sign(noise) * np.sqrt(np.abs(noise))


def noisy_dense(part, name, x, noise_in, noise_out):
    get = lambda variable: part.variables[f"{name}.{variable}"]  # noqa: E731
    fixed = dense(part, name, x)
    return fixed + ((x * rooted(noise_in)) @ get("weight_scale") + get("bias_scale")) * rooted(noise_out)


def test_a_noisy_layer_adds_scaled_factorised_noise_to_its_parameters():
    part = values(Mlp((6,), "tanh", noisy=0.5))
    noise = np.random.default_rng(5).standard_normal(part.noise_size).astype(np.float32)
    first_in, first_out, second_in, second_out = np.split(noise, np.cumsum([5, 6, 6]))
    hidden = np.tanh(noisy_dense(part, "dense0", X, first_in, first_out))
    expected = noisy_dense(part, "dense1", hidden, second_in, second_out)
    np.testing.assert_allclose(part.perturbed(noise)(X), expected, rtol=1e-4, atol=1e-6)


def test_the_spread_of_a_noisy_layer_is_that_of_its_scales():
    part = values(Mlp((), noisy=0.7))
    rng, x = np.random.default_rng(7), X[:1]
    found = np.concatenate([part.perturbed(noise)(x) for noise in rng.standard_normal((20_000, part.noise_size))])
    # The mean of f(e)**2 is that of |e|, sqrt(2 / pi); inputs and outputs have factors of their own.
    scale = 0.7 / np.sqrt(5)
    expected = scale**2 * (2 / np.pi * (x**2).sum() + np.sqrt(2 / np.pi))
    np.testing.assert_allclose(found.var(0), expected, rtol=0.06)
    np.testing.assert_allclose(found.mean(0), part(x)[0], atol=5 * np.sqrt(expected / 20_000))


def test_noise_begins_at_0_and_scales_at_their_share_of_the_inputs():
    part, still = values(Mlp((6,), noisy=0.5, dueling=True)), values(Mlp((6,), dueling=True))
    np.testing.assert_array_equal(part(X), still(X))
    np.testing.assert_allclose(part.variables["value.dense0.weight_scale"], 0.5 / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(part.variables["advantage.dense1.bias_scale"], 0.5 / np.sqrt(6), rtol=1e-6)
    assert part.noise_size == (5 + 6) + (6 + 1) + (5 + 6) + (6 + 3)
    assert (still.noise_size, still.perturbed(np.zeros(0))) == (0, still)


def test_only_networks_of_action_values_may_be_dueling_and_only_losses_that_draw_noise_have_noisy_layers():
    def engine(algorithm, config, action):
        return NumpyEngine(find(algorithm)[0](config), Spaces(VECTOR, action))

    with pytest.raises(ConfigError, match="dueling=True splits values of actions"):
        engine("sac", SACConfig(network=Mlp((8,), dueling=True)), BOX2)
    with pytest.raises(ConfigError, match="SAC's loss draws no noise for layers"):
        engine("sac", SACConfig(network=Mlp((8,), noisy=0.5)), BOX2)
    with pytest.raises(ConfigError, match="doubles the last hidden layer, and widths is"):
        Mlp((), dueling=True)
    with pytest.raises(ConfigError, match="noisy = -1"):
        Mlp(noisy=-1)
    assert engine("dqn", DQNConfig(network=Mlp((8,), noisy=0.5)), Discrete(2)).layout.noisy


def test_lagged_copies_are_explored_with_by_nobody():
    engine = NumpyEngine(find("rainbow")[0](RainbowConfig()), Spaces(VECTOR, Discrete(2)))
    assert {name.split(".")[0] for name in engine.layout.noisy} == {"q"}
    drawn = engine.layout.draw_layer_noise(np.random.default_rng(0))
    assert {name: value.shape for name, value in drawn.items()} == {
        name: engine.layout.initial[name].shape for name in engine.layout.noisy
    }
