"""Signals are what their formulas say, or say why there are none."""

import numpy as np
import pytest

from etude.adapt.rules import UnusableSignal, effective_sample_size, gradient_noise, gradient_variance, smoothed


@pytest.mark.parametrize(
    ("priority", "expected"),
    [([1, 1, 1, 1], 4), ([1, 0, 0, 0], 1), ([1, 2, 3], 36 / 14), ([1e-300, 2e-300, 3e-300], 36 / 14), ([0, 1e300], 1)],
)
def test_the_effective_sample_size_is_one_over_the_sum_of_squared_probabilities(priority, expected):
    assert effective_sample_size(np.array(priority)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("priority", "reason"),
    [([], "0 rows"), ([1.0], "1 rows"), ([0.0, 0.0], "are 0"), ([1.0, np.nan], "NaN"), ([1.0, -1.0], "negative")],
)
def test_priorities_without_an_effective_sample_size_say_why(priority, reason):
    with pytest.raises(UnusableSignal, match=reason):
        effective_sample_size(np.array(priority))


def test_the_variance_of_gradients_is_over_minibatches_and_averaged_over_entries():
    gradients = [{"a": np.array([1.0]), "b": np.array([[2.0]])}, {"a": np.array([3.0]), "b": np.array([[6.0]])}]
    assert gradient_variance(gradients) == pytest.approx((2 + 8) / 2)


def test_the_noise_scale_finds_the_noise_of_single_examples_and_the_gradient():
    """With 10 entries of the gradient 0.5 and noise of variance 4 for each example: 10 * 4 / (10 * 0.25) = 16."""
    rng, size = np.random.default_rng(0), 8
    noise = rng.normal(0.0, 2.0 / np.sqrt(size), (4_000, 10))
    gradients = [{"w": 0.5 + row} for row in noise]
    noise, squared = gradient_noise(gradients, size)
    assert noise / squared == pytest.approx(16.0, rel=0.05)


@pytest.mark.parametrize("signal", [gradient_variance, lambda found: gradient_noise(found, 4)])
@pytest.mark.parametrize(
    ("gradients", "reason"),
    [([{"w": np.ones(2)}], "1 minibatches"), ([{"w": np.ones(2)}, {"w": np.full(2, np.inf)}], "infinite")],
)
def test_gradients_without_a_signal_say_why(signal, gradients, reason):
    with pytest.raises(UnusableSignal, match=reason):
        signal(gradients)


def test_where_noise_hides_the_gradient_its_square_is_estimated_as_negative():
    noise, squared = gradient_noise([{"w": np.array([1.0])}, {"w": np.array([-1.0])}], 4)
    assert (noise, squared) == (8.0, -1.0)


def test_the_moving_average_starts_at_the_first_value():
    assert smoothed(None, 4.0, 0.25) == 4.0
    assert smoothed(4.0, 8.0, 0.25) == 5.0
