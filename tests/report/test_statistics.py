import numpy as np
import pytest

from etude.report.series import aggregate, interquartile_mean, interval, performance_profile, probability_of_improvement


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side():
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == 3.5  # of 2, 3, 4, 5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3  # of three seeds none
    np.testing.assert_array_equal(interquartile_mean(np.array([[1.0, 9], [2, 8], [3, 7], [100, 0]])), [2.5, 7.5])


@pytest.mark.parametrize("statistic", ["iqm", "mean", "median"])
def test_intervals_are_of_each_column_and_cover_the_statistic(statistic):
    values = np.random.default_rng(0).normal(size=(100, 3))
    low, high = interval(values, statistic)
    assert low.shape == (3,) and np.all(low < high)
    np.testing.assert_array_equal(interval(values[:, 1], statistic), [low[1], high[1]])
    np.testing.assert_allclose(high - low, 4 / np.sqrt(100), rtol=0.6)


def test_curves_are_aggregated_on_the_steps_that_all_cover():
    curves = [(np.array([0.0, 10, 20]), np.array([0.0, 10, 20])), (np.array([10.0, 30]), np.array([0.0, 20]))]
    steps, mean, low, high = aggregate(curves, "range", "mean")
    assert steps.tolist() == [10, 20] and mean.tolist() == [5, 15]
    assert low.tolist() == [0, 10] and high.tolist() == [10, 20]


def test_a_performance_profile_is_the_share_of_runs_above_each_threshold():
    share, low, high = performance_profile(np.array([1.0, 2, 3, 4]), np.array([0.0, 2, 3.5, 4]))
    assert share.tolist() == [1, 0.5, 0.25, 0]
    assert np.all((low <= share) & (share <= high)) and low[0] == 1 and high[-1] == 0


def test_the_probability_of_improvement_is_a_mean_over_tasks_and_equal_scores_count_half():
    ours, theirs = [np.array([2.0, 3]), np.array([1.0])], [np.array([1.0, 3]), np.array([1.0, 0])]
    value, low, high = probability_of_improvement(ours, theirs)
    assert value == ((1 + 0 + 1 + 0.5) / 4 + (0.5 + 1) / 2) / 2
    assert 0 <= low <= value <= high <= 1
    assert probability_of_improvement([np.arange(5.0) + 9], [np.arange(4.0)]) == (1, 1, 1)


def test_its_interval_is_as_wide_as_the_standard_error_says():
    # For equal distributions the variance of the Mann-Whitney statistic over n * m is (n + m + 1) / (12 n m).
    rng = np.random.default_rng(0)
    _, low, high = probability_of_improvement([rng.normal(size=40)], [rng.normal(size=40)])
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(81 / (12 * 1600)), rel=0.15)
