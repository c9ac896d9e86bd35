"""V-trace and Retrace against their definitions as sums, and episodes that end inside a column."""

import numpy as np
import pytest

from etude.losses import returns
from etude.losses.value import td

STEPS, COLUMNS = 9, 6


def trajectories(seed=0, ends=0.2):
    """reward, discount, value, next_value, goes_on, log_ratio, all [T, B]: columns of episodes of random lengths."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, COLUMNS)
    reward, value, log_ratio, final = rng.normal(size=(4, *shape)).astype(np.float32)
    ended, terminated = rng.random(shape) < ends, rng.random(shape) < 0.5
    goes_on = np.float32(~ended)
    discount = np.where(ended & terminated, 0, 0.9).astype(np.float32)
    next_value = final
    next_value[:-1] = np.where(ended[:-1], final[:-1], value[1:])
    return reward, discount, value, next_value, goes_on, log_ratio


def every_episode(goes_on):
    """The rows of each episode and its column."""
    for column in range(COLUMNS):
        starts = [0, *(np.flatnonzero(goes_on[:-1, column] == 0) + 1), STEPS]
        for start, end in zip(starts[:-1], starts[1:], strict=True):
            yield slice(start, end), slice(column, column + 1)


def test_vtrace_is_the_discounted_sum_of_weighted_errors_of_each_episode():
    reward, discount, value, next_value, goes_on, log_ratio = trajectories()
    error, ratio = td(value, reward, discount, next_value), np.exp(log_ratio)
    found = returns.vtrace(error, discount, goes_on, log_ratio, 0.8, 1.5, 1.2)
    for rows, column in every_episode(goes_on):
        e, d, r = (x[rows, column] for x in (error, discount, ratio))
        for s in range(len(e)):
            total, factor = np.zeros(1), np.ones(1)
            for t in range(s, len(e)):
                total += factor * np.minimum(1.5, r[t]) * e[t]
                factor = factor * d[t] * 0.8 * np.minimum(1.2, r[t])
            np.testing.assert_allclose(found[rows, column][s], total, rtol=1e-4, atol=1e-5)


def test_retrace_weighs_an_error_with_the_traces_of_the_actions_after_the_first():
    reward, discount, value, next_value, goes_on, log_ratio = trajectories(1)
    error, trace = td(value, reward, discount, next_value), 0.9 * np.minimum(1, np.exp(log_ratio))
    found = returns.retrace(error, discount, goes_on, log_ratio, 0.9)
    for rows, column in every_episode(goes_on):
        e, d, c = (x[rows, column] for x in (error, discount, trace))
        for s in range(len(e)):
            total = sum(d[s:t].prod(0) * c[s + 1 : t + 1].prod(0) * e[t] for t in range(s, len(e)))
            np.testing.assert_allclose(found[rows, column][s], total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["vtrace", "vtrace_advantages", "retrace"])
def test_episodes_of_one_column_do_not_know_each_other(which):
    def corrections(reward, discount, value, next_value, goes_on, log_ratio):
        error = td(value, reward, discount, next_value)
        if which == "retrace":
            return returns.retrace(error, discount, goes_on, log_ratio, 0.9)
        found = returns.vtrace(error, discount, goes_on, log_ratio, 0.9, 1.0, 1.0)
        if which == "vtrace":
            return found
        return returns.vtrace_advantages(error, found, discount, goes_on, log_ratio, 0.9, 1.0)

    arrays = trajectories(2)
    together, goes_on = corrections(*arrays), arrays[4]
    assert 0 < goes_on[:-1].mean() < 1
    assert (arrays[1] * (1 - goes_on) > 0).any(), "no episode was truncated"
    for rows, column in every_episode(goes_on):
        alone = corrections(*(array[rows, column] for array in arrays))
        np.testing.assert_allclose(together[rows, column], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_without_a_change_of_policy_all_are_generalised_advantages(lambda_):
    reward, discount, value, next_value, goes_on, log_ratio = trajectories(3, ends=0.0)
    error, same = td(value, reward, discount, next_value), 0 * log_ratio
    expected = returns.advantages(reward, discount, value, next_value, lambda_)
    found = returns.vtrace(error, discount, goes_on, same, lambda_, 1.0, 1.0)
    advantage = returns.vtrace_advantages(error, found, discount, goes_on, same, lambda_, 1.0)
    for result in (found, advantage, returns.retrace(error, discount, goes_on, same, lambda_)):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_ratios_are_cut_at_their_bars():
    error, ones, ratio = np.ones((2, 1), np.float32), np.ones((2, 1), np.float32), np.log(np.float32([[4], [4]]))
    found = returns.vtrace(error, ones, ones, ratio, 1.0, 3.0, 2.0)
    np.testing.assert_allclose(found, [[3 + 2 * 3], [3]])
    np.testing.assert_allclose(returns.vtrace_advantages(error, found, ones, ones, ratio, 1.0, 1.5), [[6], [1.5]])
    huge = returns.vtrace(error, ones, ones, ratio * 0 + 60, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(huge, [[2], [1]])
