"""Estimators, intervals and weights against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.errors import ConfigError, DataError
from etude.estimation.estimator import check_weights, filled
from etude.estimation.estimators import METHODS, SIMULATION, chosen, effective_size, estimate_of, interval, student

# Two episodes; the second ends after its first step. Ratios 2, 1/2 and 3.
REWARD = np.array([[1.0, 2.0], [4.0, 0.0]])
LOG_RATIO = np.log([[2.0, 0.5], [3.0, 1.0]])
Q = np.array([[3.0, 1.0], [2.0, 0.0]])
V = np.array([[5.0, 4.0], [6.0, 0.0]])
GAMMA = 0.5


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # Weights of step 0: 2 and 3; of step 1: 1, and 3 as the second episode ended with it.
        ("is", (1.0 * (1 + 0.5 * 2) + 3.0 * 4) / 2),
        ("pdis", (2.0 * 1 + 1.0 * 0.5 * 2 + 3.0 * 4) / 2),
        ("wis", (2 * 1 + 3 * 4) / 5 + (1 * 0.5 * 2 + 0) / 4),
        ("trajectory_wis", (1 * 2 + 3 * 4) / 4),
        ("dm", (5 + 6) / 2),
        ("fqe", (5 + 6) / 2),
        # Before step 1 the weights are 2 and 3.
        ("dr", (5 + 2 * (1 - 3) + 0.5 * (2 * 4 + 1 * (2 - 1)) + 6 + 3 * (4 - 2)) / 2),
        ("wdr", (5 + 6) / 2 + (2 * -2 + 3 * 2) / 5 + 0.5 * (2 * 4) / 5 + 0.5 * (1 * 1) / 4),
    ],
)
def test_estimates_are_those_worked_out_by_hand(method, expected):
    found = METHODS[method].estimator(REWARD, LOG_RATIO, Q, V, GAMMA)
    assert found.shape == (2,) and found.mean() == pytest.approx(expected)


def test_every_method_has_its_numbers():
    assert set(METHODS) == {"is", "pdis", "wis", "trajectory_wis", "dm", "fqe", "dr", "wdr"}
    assert chosen("wis") == ("wis",) and chosen(["dr", "wis", "dr"]) == ("dr", "wis")
    assert chosen([SIMULATION]) == ("simulation",)


@pytest.mark.parametrize(
    ("methods", "said"), [(["wsi"], "no method 'wsi' of estimation. There are is, pdis,"), ([], "at least one of is")]
)
def test_a_method_that_there_is_not_is_refused(methods, said):
    with pytest.raises(ConfigError, match=said):
        chosen(methods)


def test_shares_of_no_weight_at_all_are_no_number():
    never = np.full((2, 2), -np.inf)
    assert np.isnan(METHODS["wis"].estimator(REWARD, never, Q, V, GAMMA)).all()
    assert METHODS["is"].estimator(REWARD, never, Q, V, GAMMA).tolist() == [0.0, 0.0]


def test_the_spread_of_shares_is_that_of_the_ratio():
    rng = np.random.default_rng(0)
    log_ratio, reward = rng.normal(0, 0.5, (20_000, 1)), rng.normal(1, 1, (20_000, 1))
    found = METHODS["wis"].estimator(reward, log_ratio, reward, reward, 1.0)
    small = [
        METHODS["wis"].estimator(reward[i : i + 100], log_ratio[i : i + 100], reward, reward, 1.0).mean()
        for i in range(0, 20_000, 100)
    ]
    assert found.std() / 10 == pytest.approx(np.std(small), rel=0.15)


def test_effective_sizes_and_largest_weights_are_those_worked_out_by_hand():
    assert effective_size(np.log([1.0, 1.0, 1.0])) == pytest.approx(3)
    assert effective_size(np.log([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_size(np.array([500.0, 500.0])) == pytest.approx(2)
    assert effective_size(np.full(3, -np.inf)) == 0
    found = estimate_of("is", np.array([2.0, 4.0]), np.log([3.0, 1.0]), 2.0, 0.95, True)
    assert (found.value, found.behaviour, found.gain) == (3.0, 2.0, 1.5)
    assert found.largest_weight == pytest.approx(3)
    assert (found.low, found.high) == pytest.approx((3 - 12.706205, 3 + 12.706205))  # one degree of freedom


@pytest.mark.parametrize("behaviour", [0.0, -1.0])
def test_a_gain_over_nothing_is_no_number(behaviour):
    found = estimate_of("is", np.ones(2), np.zeros(2), behaviour, 0.95, True)
    assert np.isnan(found.gain)


@pytest.mark.parametrize("skewed", [True, False])
def test_intervals_of_normal_numbers_are_those_of_the_textbook(skewed):
    values = np.random.default_rng(3).normal(size=400)
    wide, narrow = (interval(values, share, skewed) for share in (0.99, 0.5))
    assert wide[0] < narrow[0] < values.mean() < narrow[1] < wide[1]
    assert wide[1] - wide[0] == pytest.approx(2 * 2.59 * values.std() / 20, rel=0.02)


def test_an_interval_reaches_further_where_rare_contributions_are_large():
    values = np.r_[np.zeros(95), np.full(5, 20.0)]
    low, high = interval(values, 0.95, True)
    plain_low, plain_high = interval(values, 0.95, False)
    assert high - 1 > 1.5 * (1 - low) and plain_high - 1 == pytest.approx(1 - plain_low)
    assert plain_high - 1 > 1.05 * student(0.975, 99) * values.std() / 10


@pytest.mark.parametrize(
    ("share", "degrees", "expected"),  # scipy.stats.t.ppf
    [(0.975, 1, 12.706205), (0.975, 2.5, 3.574655), (0.975, 30, 2.042272), (0.975, 999.5, 1.962342),
     (0.975, 5000, 1.960439), (0.75, 4, 0.740697), (0.995, 99, 2.626405)],
)  # fmt: skip
def test_quantiles_of_students_distribution(share, degrees, expected):
    assert student(share, degrees) == pytest.approx(expected, rel=1e-5)


def test_a_single_episode_has_no_interval_and_equal_ones_have_no_width():
    assert np.isnan(interval(np.ones(1), 0.95, True)).all()
    assert np.isnan(interval(np.array([1.0, np.nan]), 0.95, True)).all()
    assert interval(np.ones(3), 0.95, True) == (1.0, 1.0)


@pytest.mark.parametrize("confidence", [0, 1, 95, "0.9", None])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        interval(np.ones(3), confidence, True)


def test_episodes_fill_rows():
    assert filled(np.array([2, 1, 3]), np.arange(1.0, 7)).tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]


def test_weights_that_are_too_large_to_square_are_refused():
    check_weights(np.array([[299.0, -5], [0, 0]]))
    with pytest.raises(DataError, match=r"weight is e\^301: the target is too far"):
        check_weights(np.array([[200.0, 101], [0, 0]]))
