"""Losses and returns against hand-worked numbers and the identities between them."""

import numpy as np
import pytest

from etude.losses import policy, returns, soft, value
from etude.losses.distributions import Categorical


def f(*values):
    return np.array(values, np.float32)


def trajectories(seed=0, steps=9, columns=4):
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=(steps, columns)).astype(np.float32)  # noqa: E731
    discount = np.where(rng.random((steps, columns)) < 0.2, 0, 0.9).astype(np.float32)
    return draw(), discount, draw(), draw()


def test_the_temporal_difference_is_the_target_minus_the_value():
    np.testing.assert_allclose(value.td(f(1, 1), f(2, 2), f(0.5, 0), f(4, 4)), [3, 1])


def test_q_learning_takes_the_value_of_the_action_and_the_best_that_follows():
    q, next_q = np.array([[1, 5], [1, 5]], np.float32), np.array([[7, 3], [7, 3]], np.float32)
    error = value.q_learning(q, np.array([0, 1]), f(1, 1), f(0.5, 0), next_q)
    np.testing.assert_allclose(error, [1 + 3.5 - 1, 1 - 5])


def test_double_q_values_the_selectors_action_and_not_the_best_one():
    q, next_q, selector = f(0, 0)[None], f(100, 2)[None], f(1, 3)[None]
    np.testing.assert_allclose(value.double_q(q, np.array([0]), f(1), f(0.5), next_q, selector), [2])


def test_huber_is_a_parabola_inside_and_a_tangent_outside():
    np.testing.assert_allclose(value.huber(f(-3, -0.5, 0, 2), 2.0), [4, 0.125, 0, 2])
    np.testing.assert_allclose(value.squared(f(-3, 2)), [4.5, 2])


def test_ppo_takes_the_lower_of_the_free_and_the_clipped_gain():
    log_ratio = np.log(f(1.5, 1.5, 0.5, 0.5, 1.1))
    loss = policy.ppo_clip(log_ratio, f(1, -1, 1, -1, 2), 0.2)
    np.testing.assert_allclose(loss, [-1.2, 1.5, -0.5, 0.8, -2.2], rtol=1e-6)


def test_value_clip_takes_the_larger_error():
    loss = policy.value_clip(f(2, 0.1, 2), f(0, 0, 0), f(3, 3, 1), 0.5)
    np.testing.assert_allclose(loss, [0.5 * 2.5**2, 0.5 * 2.9**2, 0.5 * 1], rtol=1e-6)


def test_standardised_numbers_have_mean_zero_and_deviation_one_and_equal_ones_become_zero():
    x = policy.standardise(f(1, 2, 3, 6))
    np.testing.assert_allclose([x.mean(), x.std()], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(policy.standardise(f(3, 3, 3)), 0)


def test_numbers_without_weight_change_nothing_and_all_of_them_without_weight_become_zero():
    x, weight = f(1, 2, 3, 6, 999), f(1, 1, 1, 1, 0)
    np.testing.assert_allclose(policy.standardise(x, weight)[:4], policy.standardise(x[:4]), rtol=1e-6)
    np.testing.assert_array_equal(policy.standardise(f(1, 1, 1, 1), f(0, 0, 0, 0)), 0)
    assert np.isnan(policy.standardise(f(1, np.nan, 2))).any()  # a fault that losses are to show


def test_soft_losses_hand_worked():
    np.testing.assert_allclose(soft.minimum(np.array([[1, 5], [2, 4]], np.float32)), [1, 4])


def test_the_minimum_of_a_subset_is_over_the_critics_with_the_smallest_noise():
    q = np.array([[1, 9], [5, 6], [7, 2]], np.float32)
    for noise, size, expected in (([0, 1, 2], 1, [1, 9]), ([3, -1, 2], 2, [5, 2]), ([1, 0, 2], 3, [1, 2])):
        np.testing.assert_array_equal(soft.subset_minimum(q, np.array(noise, np.float32), size), expected)
    np.testing.assert_allclose(soft.soft_target(f(1), f(0.9), f(2), f(-1), 0.5), [1 + 0.9 * 2.5])
    np.testing.assert_allclose(soft.soft_actor(f(2), f(-1), 0.5), [-2.5])
    np.testing.assert_allclose(soft.soft_temperature(-1.0, f(-3, 1), -2.0), [-5, -1])


def test_discrete_soft_losses_are_those_of_sampled_actions_in_the_mean():
    rng = np.random.default_rng(5)
    q, logits = rng.normal(size=(2, 4, 3)).astype(np.float32)
    policy_now = Categorical(logits)
    actions = [np.full(4, action) for action in range(3)]
    weight = [np.exp(policy_now.log_prob(action)) for action in actions]
    sampled = [q[:, i] - 0.3 * policy_now.log_prob(action) for i, action in enumerate(actions)]
    np.testing.assert_allclose(
        soft.soft_value(q, policy_now, 0.3), sum(w * x for w, x in zip(weight, sampled, strict=True)), rtol=1e-5
    )
    np.testing.assert_allclose(soft.soft_discrete_actor(q, policy_now, 0.3), -soft.soft_value(q, policy_now, 0.3))
    losses = [soft.soft_temperature(-0.5, policy_now.log_prob(action), 0.7) for action in actions]
    found = soft.soft_temperature(-0.5, -policy_now.entropy(), 0.7)
    np.testing.assert_allclose(found, sum(w * x for w, x in zip(weight, losses, strict=True)), rtol=1e-5)


def test_the_kl_coefficient_follows_the_divergence_outside_a_band_around_its_target():
    found = [policy.next_kl_coefficient(0.4, kl, 0.03) for kl in (0.046, 0.044, 0.021, 0.019)]
    assert found == [0.8, 0.4, 0.4, 0.2]


def test_smoothing_keeps_the_action_near_and_inside_the_bounds():
    rng = np.random.default_rng(6)
    action = np.tanh(rng.normal(size=(100, 3))).astype(np.float32)
    found = policy.smoothed(action, rng.normal(size=(100, 3)).astype(np.float32), 0.4, 0.5)
    assert np.abs(found - action).max() <= 0.5 + 1e-6
    assert np.abs(found).max() <= 1
    assert (np.abs(found - action) > 0.49).any()


def test_lambda_zero_is_one_step_and_lambda_one_is_the_whole_return():
    reward, discount, _, following = trajectories()
    one_step = returns.lambda_returns(reward, discount, following, 0.0)
    np.testing.assert_allclose(one_step, reward + discount * following, rtol=1e-5)
    whole = returns.lambda_returns(reward, discount, following, 1.0)
    np.testing.assert_allclose(whole, returns.discounted_returns(reward, discount, following[-1]), rtol=1e-5)


def test_one_step_returns_and_returns_of_more_steps_than_there_are():
    reward, discount, _, following = trajectories(1)
    np.testing.assert_allclose(
        returns.n_step_returns(reward, discount, following, 1), reward + discount * following, rtol=1e-5
    )
    np.testing.assert_allclose(
        returns.n_step_returns(reward, discount, following, 50),
        returns.discounted_returns(reward, discount, following[-1]),
        rtol=1e-5,
        atol=1e-5,
    )


def test_n_step_returns_of_runs_do_not_go_beyond_where_a_run_stops():
    reward, discount, _, following = trajectories(3)
    follows = (np.random.default_rng(4).random(reward.shape) < 0.7).astype(np.float32)
    found = returns.n_step_returns_of_runs(reward, discount, following, follows, 4)
    for t, column in np.ndindex(reward.shape):
        end = t
        while end < min(t + 4, len(reward)) - 1 and follows[end, column]:
            end += 1
        expected = following[end, column]
        for i in range(end, t - 1, -1):
            expected = reward[i, column] + discount[i, column] * expected
        assert found[t, column] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    whole = returns.n_step_returns_of_runs(reward, discount, following, np.ones_like(follows), 4)
    np.testing.assert_allclose(whole, returns.n_step_returns(reward, discount, following, 4), rtol=1e-5, atol=1e-5)


def test_n_step_returns_follow_their_definition():
    reward, discount, _, following = trajectories(2)
    found = returns.n_step_returns(reward, discount, following, 4)
    for t in range(len(reward)):
        end = min(t + 4, len(reward)) - 1
        expected = following[end]
        for i in range(end, t - 1, -1):
            expected = reward[i] + discount[i] * expected
        np.testing.assert_allclose(found[t], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_advantages_are_lambda_returns_minus_values_where_values_are_consistent(lambda_):
    reward, discount, present, _ = trajectories(3)
    following = np.concatenate([present[1:], present[:1]])
    advantage = returns.advantages(reward, discount, present, following, lambda_)
    target = returns.lambda_returns(reward, discount, following, lambda_)
    np.testing.assert_allclose(advantage, target - present, rtol=1e-4, atol=1e-5)


def test_nothing_flows_back_across_the_end_of_an_episode():
    reward, discount, present, following = trajectories(4)
    discount[4] = 0
    before = returns.advantages(reward, discount, present, following, 0.9)
    reward[5:] += 100
    after = returns.advantages(reward, discount, present, following, 0.9)
    np.testing.assert_array_equal(after[:5], before[:5])
    assert not np.allclose(after[5:], before[5:])
