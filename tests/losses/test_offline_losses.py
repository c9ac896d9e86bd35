"""Losses of recorded data: what they are least at, and what they estimate."""

import numpy as np
import pytest

from etude.losses import offline


def test_an_expectile_of_one_half_is_the_mean_and_higher_ones_lie_above():
    target = np.random.default_rng(0).exponential(size=500).astype(np.float32)
    candidates = np.linspace(0, 4, 401, dtype=np.float32)
    lowest = [
        candidates[np.argmin([offline.expectile(target - x, fraction).mean() for x in candidates])]
        for fraction in (0.5, 0.7, 0.9)
    ]
    assert lowest[0] == pytest.approx(target.mean(), abs=0.006)
    assert lowest[0] < lowest[1] < lowest[2] < target.max()


def test_gumbel_regression_is_least_at_the_soft_maximum_and_its_exponent_is_bounded():
    target = np.random.default_rng(0).normal(size=500).astype(np.float32)
    candidates = np.linspace(-1, 4, 1_001, dtype=np.float32)
    for temperature in (0.5, 2.0):
        mean = [offline.gumbel_regression(target - x, temperature, 50.0).mean() for x in candidates]
        expected = temperature * np.log(np.mean(np.exp(np.float64(target) / temperature)))
        assert candidates[np.argmin(mean)] == pytest.approx(expected, abs=0.006)
    found = offline.gumbel_regression(np.array([-4.0, 0.0, 2.0, 1e9]), 2.0, 3.0)
    np.testing.assert_allclose(found, [np.exp(-2) + 1, 0, np.e - 2, np.exp(3) - 4], rtol=1e-6)


def test_weights_grow_with_the_advantage_up_to_their_bound_and_never_overflow():
    advantage = np.array([-1e9, -1, 0, 1, 2, 1e9], np.float32)
    with np.errstate(over="raise"):
        weight = offline.exponential_weight(advantage, 3.0, 100.0)
    np.testing.assert_allclose(weight, [0, np.exp(-3), 1, np.exp(3), 100, 100], rtol=1e-5)


def test_marwil_without_beta_is_behaviour_cloning_and_its_scale_divides_advantages():
    rng = np.random.default_rng(1)
    log_prob, advantage = rng.normal(size=(2, 20)).astype(np.float32)
    cloned = offline.negative_log_likelihood(log_prob)
    np.testing.assert_array_equal(offline.marwil(log_prob, advantage, 0.0, 1.0), cloned)
    np.testing.assert_allclose(
        offline.marwil(log_prob, 10 * advantage, 1.0, 10.0), offline.marwil(log_prob, advantage, 1.0, 1.0), rtol=1e-5
    )


def test_the_running_square_goes_to_the_mean_square():
    advantage = np.random.default_rng(2).normal(2.0, 1.0, 1000).astype(np.float32)
    square = 100.0
    for _ in range(300):
        square = offline.running_square(square, advantage, 0.1)
    assert square == pytest.approx(np.mean(advantage**2), rel=1e-4)


def test_td3_bc_weighs_values_alike_whatever_their_size():
    rng = np.random.default_rng(3)
    q, action, recorded = rng.normal(size=20), rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    small, large = (offline.td3_bc(scale * q, action, recorded, 2.5) for scale in (1.0, 1000.0))
    np.testing.assert_allclose(small, large, rtol=1e-5)
    np.testing.assert_allclose(
        offline.td3_bc(q, action, recorded, 0.0), offline.action_error(action, recorded), rtol=1e-6
    )


def test_the_conservative_gap_is_the_surprise_of_the_recorded_choice_under_softmax():
    q = np.random.default_rng(4).normal(size=(20, 4)).astype(np.float32)
    action = np.arange(20) % 4
    probability = np.exp(q) / np.exp(q).sum(-1, keepdims=True)
    np.testing.assert_allclose(offline.cql_gap(q, action), -np.log(probability[np.arange(20), action]), rtol=1e-5)


@pytest.mark.parametrize("samples", [2000, 4000])
def test_the_sampled_gap_estimates_the_integral_over_actions_whatever_they_were_drawn_from(samples):
    slope = np.array([[0.5, 2.0], [-1.0, 3.0]])[:, :, None]  # q = slope * action, two critics, two states
    level = (np.arange(samples) + 0.5) / samples
    uniform = 2 * level - 1
    rising = 2 * np.sqrt(level) - 1  # of density (1 + action) / 2
    action = np.stack([uniform, rising])
    log_prob = np.stack([np.full(samples, np.log(0.5)), np.log((1 + rising) / 2)])
    q = np.array([[0.1, 0.2], [0.3, 0.4]])
    found = offline.cql_sampled_gap(slope * action, log_prob, q)
    integral = 2 * np.sinh(slope[..., 0]) / slope[..., 0]
    np.testing.assert_allclose(found, np.log(integral) - q, atol=0.02)
