"""The arithmetic of learning-rate ramps, on curves that are made up; and the arguments that finders refuse."""

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.solo.agent import RL
from etude.tuning import LRFinder
from etude.tuning.finding.lr_finder import Observed, RampEnded, RampRecord, smoothed, suggest

RATES = np.geomspace(1e-5, 1.0, 200)
POSITIONS = np.log10(RATES)
NONE = np.array([])


def found_in(losses, rewards=NONE):
    """The suggestion from curves over RATES, or their beginnings."""
    return suggest(Observed(RATES[: len(losses)], losses), Observed(RATES[: len(rewards)], rewards))


def noise(size, seed=0):
    return size * np.random.default_rng(seed).standard_normal(200)


def falling(middle):
    """From 1 to 0 around a rate of 10**middle."""
    return 1 / (1 + np.exp(4 * (POSITIONS - middle)))


def exploding(after):
    return np.where(after < POSITIONS, np.exp(np.minimum(6 * (POSITIONS - after), 20)) - 1, 0.0)


def test_the_rate_grows_by_one_factor_and_is_the_end_after_exactly_n_updates():
    ramp = RampRecord(1e-4, 1.0, 77)
    rates = [ramp.at(i) for i in range(78)]
    assert rates[0] == 1e-4 and rates[77] == 1.0
    assert np.allclose(np.diff(np.log(rates)), np.log((1.0 / 1e-4) ** (1 / 77)))


def test_a_record_ends_training_with_the_last_update():
    record = RampRecord(0.1, 1.0, 3)
    record.add_loss(1.0)
    record.add_loss(1.0)
    assert record.rate == pytest.approx(0.1 * 10 ** (2 / 3))
    with pytest.raises(RampEnded):
        record.add_loss(1.0)
    assert record.rate == 1.0


def test_rewards_are_normalised_by_the_last_ones_up_to_each():
    record = RampRecord(0.1, 1.0, 9, rewards=[1.0, 3.0, 3.0, 3.0, 9.0])
    window = [1.0, 3.0, 3.0]
    expected = [0.0, 1.0, (3 - np.mean(window)) / np.std(window), 0.0, (9 - 5) / np.std([3.0, 3.0, 9.0])]
    assert np.allclose(record.normalised_rewards(3), expected)


def test_an_update_has_the_reward_of_the_first_episode_that_ended_after_it():
    record = RampRecord(0.1, 1.0, 9, losses=[0.0] * 6, rewards=[5.0, 6.0, 7.0], ended=[0, 2, 5])
    assert record.rewards_of_updates(np.array(record.rewards)).tolist() == [6.0, 6.0, 7.0, 7.0, 7.0, 7.0]


def test_rewards_have_the_rate_of_the_last_update_before_they_ended():
    record = RampRecord(0.1, 1.0, 9, rewards=[5.0, 6.0, 7.0], ended=[0, 2, 5])
    found = record.rated_rewards()
    assert found.values.tolist() == [6.0, 7.0] and np.allclose(found.rates, [record.at(1), record.at(4)])


def test_the_suggested_rate_is_where_the_loss_falls_fastest():
    found = found_in(falling(-3) + noise(0.02))
    assert 3e-4 < found.rate < 3e-3 and found.metric == "loss" and "improves fastest" in found.reason


def test_rewards_that_improve_count_before_losses():
    found = found_in(falling(-3) + noise(0.02), 50 * (1 - falling(-2)) + noise(1.0, 1))
    assert 3e-3 < found.rate < 3e-2 and found.metric == "reward"


def test_a_loss_that_diverges_bounds_the_suggested_rate_to_a_tenth():
    found = found_in(falling(-1.5) + exploding(-1.2) + noise(0.01))
    assert found.rate < 10**-1.8 and "diverges" in found.reason


def test_a_loss_that_only_diverges_suggests_a_tenth_of_that():
    losses = 1 + exploding(-2) + noise(0.05)
    losses[150:] = np.nan
    found = found_in(losses)
    assert 3e-4 < found.rate < 3e-3 and found.metric is None


@pytest.mark.parametrize("seed", range(5))
def test_flat_curves_suggest_nothing_and_say_why(seed):
    found = found_in(1 + noise(0.1, seed), 10 + noise(3.0, seed + 50))
    assert found.rate is None and "noise" in found.reason


def test_a_curve_of_a_few_updates_suggests_nothing():
    found = found_in(np.ones(4))
    assert found.rate is None and "only 4 updates" in found.reason


@pytest.mark.parametrize(
    "start, end, updates", [(1.0, 0.1, 10), (0.0, 1.0, 10), (0.1, np.inf, 10), (0.1, 1.0, 1), (0.1, 1.0, 7.5)]
)
def test_ramps_that_do_not_grow_are_refused(start, end, updates):
    with pytest.raises(ConfigError, match="expected"):
        RampRecord(start, end, updates)


def test_what_cannot_train_is_refused():
    with pytest.raises(ConfigError, match="etude.Run"):
        LRFinder("dqn")


def finder_of(losses, rewards):
    """One whose ramp over RATES is over: an episode ended after each of the first updates."""
    finder = LRFinder(object.__new__(RL))
    ended = list(range(1, len(rewards) + 1))
    finder._record = RampRecord(1e-5, 1.0, len(losses), list(losses), list(rewards), ended)
    finder.suggestion = finder._suggested()
    return finder


def test_the_picture_has_the_smoothed_curves_that_the_suggestion_was_read_from(tmp_path):
    losses = falling(-3) + noise(0.02) + exploding(-0.5)
    finder = finder_of(losses, np.arange(12.0))
    loss, reward = finder.plot(tmp_path / "rate.svg").axes
    raw, smooth, suggested = loss.lines
    np.testing.assert_array_equal(raw.get_ydata(), losses)
    np.testing.assert_array_equal(smooth.get_ydata(), smoothed(losses))
    assert suggested.get_xdata()[0] == finder.suggestion.rate
    assert loss.get_ylim()[1] < 10 < losses.max(), "what comes after the loss diverges does not set the axis"
    assert (loss.get_ylabel(), reward.get_ylabel()) == ("loss", "return of an episode")
    assert reward.get_xlabel() == "learning rate (logarithmic)"


@pytest.mark.parametrize("losses", [[np.nan] * 9, [np.nan, *[1.0] * 8]])
def test_where_no_update_had_a_loss_there_is_nothing_to_draw(losses, tmp_path):
    with pytest.raises(ConfigError, match="no loss to draw: no update had a finite one"):
        finder_of(np.array(losses), np.zeros(0)).plot(tmp_path / "rate.png")


@pytest.mark.parametrize("episodes", [0, 4, 7])
def test_returns_of_a_few_episodes_are_not_drawn(episodes, tmp_path):
    figure = finder_of(falling(-3) + noise(0.02), np.arange(float(episodes))).plot(tmp_path / "rate.png")
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss"]
