"""Centred ranks and the gradient from mirrored noise."""

import numpy as np
import pytest

from etude import Mlp
from etude.algorithms import ARS, ARSConfig
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Box, Spaces
from etude.engines.numpy import NumpyEngine
from etude.engines.stacked import PerturbedActor
from etude.losses.policy import antithetic_gradient, augmented_gradient, centred_ranks


def test_ranks_are_spread_evenly_around_zero():
    ranks = centred_ranks(np.array([[3.0, -7.0, 1e9], [0.0, 0.5, -np.inf]]))
    np.testing.assert_allclose(ranks, [[0.3, -0.3, 0.5], [-0.1, 0.1, -0.5]], rtol=1e-6)
    assert ranks.dtype == np.float32


def test_equal_numbers_share_their_ranks():
    np.testing.assert_allclose(centred_ranks(np.array([2, 1, 2, 0, 2])), [0.25, -0.25, 0.25, -0.5, 0.25])
    np.testing.assert_array_equal(centred_ranks(np.full(4, 7.0)), 0)
    np.testing.assert_array_equal(centred_ranks(np.array([7.0])), 0)


def test_ranks_do_not_depend_on_the_scale_of_the_fitness():
    fitness = np.random.default_rng(0).normal(size=100)
    np.testing.assert_array_equal(centred_ranks(fitness), centred_ranks(np.exp(fitness)))
    assert centred_ranks(fitness).sum() == pytest.approx(0, abs=1e-5)


def test_a_fitness_that_is_not_a_number_is_refused():
    with pytest.raises(ConfigError, match="1 of 3 numbers are NaN.*-inf"):
        centred_ranks(np.array([1.0, np.nan, 2.0]))


def test_the_gradient_of_a_linear_fitness_is_exact_where_the_noise_spans_the_space():
    slope = np.array([1.0, -2.0, 0.5])
    noise = np.sqrt(3) * np.eye(3)
    fitness = np.stack([0.1 * noise @ slope, -0.1 * noise @ slope])
    gradient = antithetic_gradient(fitness, noise, 0.1)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)
    assert gradient.dtype == np.float32


def test_mirrored_noise_cancels_what_is_even_in_the_parameters():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(50, 4))
    even = (noise**2).sum(1)
    np.testing.assert_allclose(antithetic_gradient(np.stack([even, even]), noise, 0.3), 0)


def test_the_gradient_leads_up_a_hill():
    rng = np.random.default_rng(2)
    parameters, top = np.zeros(5), np.array([1.0, -1.0, 0.5, 2.0, -2.0])
    for _ in range(300):
        noise = rng.normal(size=(20, 5))
        tried = parameters + 0.1 * np.stack([noise, -noise])
        utility = centred_ranks(-((tried - top) ** 2).sum(-1))
        parameters = parameters + 0.01 * antithetic_gradient(utility, noise, 0.1)
    np.testing.assert_allclose(parameters, top, atol=0.1)


def test_the_best_directions_count_in_units_of_the_deviation_of_their_returns():
    returns = np.array([[1.0, 9.0, -4.0, 2.0], [3.0, 1.0, -5.0, 8.0]])
    noise = np.array([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0], [-1.0, 1.0]])
    deviation = np.std([9.0, 1.0, 2.0, 8.0])  # directions 1 and 3, of returns up to 9 and 8
    expected = ((9 - 1) * noise[1] + (2 - 8) * noise[3]) / (2 * deviation)
    np.testing.assert_allclose(augmented_gradient(returns, noise, 2), expected, rtol=1e-6)
    every = sum((a - b) * x for a, b, x in zip(*returns, noise, strict=True)) / (4 * returns.std())
    for top in (None, 4, 9):
        np.testing.assert_allclose(augmented_gradient(returns, noise, top), every, rtol=1e-6)
    np.testing.assert_array_equal(augmented_gradient(np.full((2, 4), 3.0), noise), np.zeros(2))


def test_policies_of_augmented_random_search_start_at_zero_and_are_linear_up_to_the_bounds():
    spaces = Spaces(Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32))
    squashed, engine = (NumpyEngine(ARS(ARSConfig(squash=on)), spaces) for on in (True, False))
    x = np.array([[1.0, -2.0, 0.5]], np.float32)
    assert not engine.act(x).mode().any() and squashed.act(x).mode().any()
    weight = np.array([[0.25, 9.0], [0.0, 0.0], [0.5, 0.0]], np.float32)
    weights = {"model.policy.dense0.weight": weight}
    for each, expected in ((engine, [[0.5, 1.0]]), (squashed, np.tanh([[0.5, 9.0]]))):
        each.load(weights)
        np.testing.assert_allclose(each.act(x).mode(), expected, atol=1e-6)


@pytest.mark.parametrize("of", ["batch_renorm", "spectral_norm"])
def test_what_only_gradient_steps_of_losses_move_is_refused(of):
    spaces = Spaces(Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32))
    with pytest.raises(
        NetworkError, match=r"ARS moves trained weights alone, and model\.policy\.dense0.*Leave batch_renorm"
    ):
        PerturbedActor(ARS(ARSConfig(network=Mlp((8,), **{of: True}))), spaces, 1)
