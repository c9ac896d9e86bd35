"""Estimators against values that are known exactly."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tabular import Chain, RandomMDP, model_fails, model_wins, weighted_of_rllib

from etude.estimation.estimators import METHODS, interval

REPLICATES, EPISODES = 2000, 50
UNBIASED = ("is", "pdis", "dr")


@functools.cache
def replicates(seed, replicates=REPLICATES, episodes=EPISODES):
    """A random MDP, and its estimates by method: [replicates]."""
    mdp = RandomMDP(seed)
    played = mdp.played(replicates * episodes, np.random.default_rng(100 + seed))
    rows = [slice(start, start + episodes) for start in range(0, replicates * episodes, episodes)]
    names = ("is", "pdis", "wis", "trajectory_wis", "dr", "wdr")
    return mdp.truth, {n: np.array([played.estimated(n, mdp.gamma, part).mean() for part in rows]) for n in names}


@pytest.mark.long_but("0")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", UNBIASED)
def test_estimates_without_shares_are_unbiased(method, seed):
    truth, found = replicates(seed)
    error = found[method].std() / np.sqrt(REPLICATES)
    assert abs(found[method].mean() - truth) < 3 * error


@pytest.mark.long_but("0")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shares_and_a_good_model_lower_the_error(seed):
    truth, found = replicates(seed)
    error = {name: np.sqrt(np.square(values - truth).mean()) for name, values in found.items()}
    assert error["dr"] < error["wis"] < error["is"]
    assert error["trajectory_wis"] < error["is"]
    assert error["wdr"] < error["wis"] and error["pdis"] < error["is"]


def test_intervals_cover_the_truth_as_often_as_they_say():
    mdp, count, episodes = RandomMDP(0), 500, 100
    played = mdp.played(count * episodes, np.random.default_rng(6))
    for method in ("is", "pdis", "wis", "trajectory_wis", "dr", "wdr"):
        covered = 0
        for start in range(0, count * episodes, episodes):
            found = played.estimated(method, mdp.gamma, slice(start, start + episodes))
            low, high = interval(found, 0.95, not METHODS[method].shares)
            covered += low <= mdp.truth <= high
        assert 0.90 <= covered / count <= 0.98, method


def test_the_direct_method_fails_where_the_model_does_and_reweighting_does_not():
    problem = model_fails()
    truth, played = problem.value(problem.target), problem.played(20_000, np.random.default_rng(0))
    assert truth == pytest.approx(-0.76)
    assert played.estimated("dm", 1.0).mean() == pytest.approx(-truth, abs=0.05)
    for method in ("is", "pdis", "wis", "dr", "wdr"):
        assert played.estimated(method, 1.0).mean() == pytest.approx(truth, abs=0.2), method


def test_the_direct_method_wins_where_the_model_is_right():
    problem, rng = model_wins(), np.random.default_rng(0)
    truth, errors = problem.value(problem.target), {"dm": [], "is": [], "pdis": [], "dr": []}
    for _ in range(200):
        played = problem.played(200, rng)
        for method, found in errors.items():
            found.append(played.estimated(method, 1.0).mean() - truth)
    error = {method: np.sqrt(np.square(found).mean()) for method, found in errors.items()}
    assert abs(np.mean(errors["dm"])) < 3 * np.std(errors["dm"]) / np.sqrt(200)
    assert error["dm"] <= error["dr"] < error["pdis"] and error["dm"] < 0.1 * error["is"]


@pytest.mark.parametrize(("goes_on", "truth", "within"), [(0.9, 8.78, 1.0), (0.8, 4.94, 0.3)])
def test_ended_episodes_stay_in_the_normalisers(goes_on, truth, within):
    chain = Chain(goes_on)
    played, lengths = chain.played(300_000, np.random.default_rng(0))
    assert chain.truth == pytest.approx(truth, abs=0.005)
    assert played.estimated("wis", 1.0).mean() == pytest.approx(truth, abs=within)
    assert weighted_of_rllib(played, lengths) == pytest.approx(2.0, abs=0.01)


def test_the_behaviour_itself_gains_nothing():
    played, _ = Chain(0.5).played(500, np.random.default_rng(1))
    for method in ("is", "pdis", "wis", "trajectory_wis"):
        assert played.estimated(method, 1.0).mean() == pytest.approx(played.reward.sum(1).mean())
