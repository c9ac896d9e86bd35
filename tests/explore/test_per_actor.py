"""Epsilons, and deviations of noise, that differ by environment."""

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete
from etude.explore import EpsilonGreedy, GaussianNoise, PerActorEpsilonGreedy, PerActorGaussianNoise
from etude.losses.distributions import Deterministic

NONE = np.empty((0, 0))
BOX = Box(-1.0, 1.0, (2,), np.float32)
VALUES = np.array([[0.0, 1.0, 0.0]], np.float32)


def test_environment_i_of_n_explores_with_the_power_of_ape_x():
    explorer = PerActorEpsilonGreedy(0.4, 7.0, 4)
    epsilon = np.array([0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8], np.float32)
    for factor, expected in ((0.99, 0), (1.01, 1)):  # what is drawn is the first action; the second is the best
        noise = np.stack([factor * epsilon, np.zeros(4, np.float32)], 1)
        assert explorer(np.repeat(VALUES, 4, 0), noise, 0, NONE).action.tolist() == [expected] * 4


def test_the_part_for_some_environments_does_what_the_whole_does_for_them():
    whole = PerActorEpsilonGreedy(Linear(1.0, 0.1), 3.0, 6, total=10)
    noise = np.stack([whole.draw(np.random.default_rng(i), 500, Discrete(3)) for i in range(6)], 1)
    for columns in ([0, 1, 2], [3, 4, 5], [4], [1, 5]):
        part = whole.of(np.array(columns))
        for step, row in enumerate(noise):
            all_actions = whole(np.repeat(VALUES, 6, 0), row, step, NONE).action
            mine = part(np.repeat(VALUES, len(columns), 0), row[columns], step, NONE).action
            np.testing.assert_array_equal(mine, all_actions[columns])
    first = whole.of(np.arange(3))(np.repeat(VALUES, 2, 0), noise[0][:2], 0, NONE)
    np.testing.assert_array_equal(first.action, whole(np.repeat(VALUES, 6, 0), noise[0], 0, NONE).action[:2])


def test_one_environment_or_an_exponent_of_0_is_plain_epsilon_greedy():
    noise = EpsilonGreedy(0.3).draw(np.random.default_rng(0), 200, Discrete(3))
    values = np.repeat(VALUES, 200, 0)
    expected = EpsilonGreedy(0.3)(values, noise, 0, NONE).action
    np.testing.assert_array_equal(PerActorEpsilonGreedy(0.3, 0.0, 200)(values, noise, 0, NONE).action, expected)
    one = PerActorEpsilonGreedy(0.3, 7.0, 1)
    found = [one(VALUES, noise[i : i + 1], 0, NONE).action[0] for i in range(200)]
    np.testing.assert_array_equal(found, expected)


def deterministic(rows):
    return Deterministic(np.linspace(-0.3, 0.4, 2 * rows, dtype=np.float32).reshape(rows, 2))


def test_noise_of_environment_i_of_n_has_the_power_of_its_deviation():
    explorer, output = PerActorGaussianNoise(0.4, 7.0, 4), deterministic(4)
    noise = np.array([[0.5, -1.0], [1.0, 2.0], [-1.0, 1.0], [3.0, 0.0]], np.float32)
    deviation = np.array([0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8])[:, None]
    found = explorer(output, noise, 0, NONE).action
    np.testing.assert_allclose(found, output.mode() + deviation * noise, rtol=1e-6)
    assert found.dtype == np.float32
    assert explorer(output, 100 * noise, 0, NONE).action[0].tolist() == [1.0, -1.0]


def test_the_part_for_some_environments_adds_the_noise_of_the_whole_and_acts_at_random_as_long():
    whole, output = PerActorGaussianNoise(Linear(0.9, 0.1), 3.0, 6, total=10, random_steps=4), deterministic(6)
    noise = np.stack([whole.draw(np.random.default_rng(i), 10, BOX) for i in range(6)], 1)
    for columns in ([0, 1, 2], [3, 4, 5], [4], [1, 5]):
        part, own = whole.of(np.array(columns)), Deterministic(output.mode()[columns])
        for step, row in enumerate(noise):
            expected = whole(output, row, step, NONE).action[columns]
            np.testing.assert_array_equal(part(own, row[columns], step, NONE).action, expected)
    alike = GaussianNoise(0.5, random_steps=4)
    for step in (3, 4):
        expected = alike(output, noise[step], step, NONE).action
        found = PerActorGaussianNoise(0.5, 0.0, 6, random_steps=4)(output, noise[step], step, NONE).action
        np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="epsilon = 2.0"):
        PerActorEpsilonGreedy(2.0, 7.0, 4)
    with pytest.raises(ConfigError, match="alpha = -1.0"):
        PerActorEpsilonGreedy(0.4, -1.0, 4)
    with pytest.raises(ConfigError, match="std = 1.5; expected a number from 0 to 1"):
        PerActorGaussianNoise(1.5, 7.0, 4)
    with pytest.raises(ConfigError, match="random_steps = -1"):
        PerActorGaussianNoise(0.4, 7.0, 4, random_steps=-1)
