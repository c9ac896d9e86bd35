"""Distributions of returns: what a projection keeps, and what quantile regression finds."""

import numpy as np
import pytest

from etude import ops
from etude.losses import distributional
from etude.losses.distributional import project, quantile_regression

SUPPORT = np.linspace(-2, 2, 9, dtype=np.float32)


def test_a_projection_keeps_the_weight_and_inside_the_support_the_mean():
    rng = np.random.default_rng(0)
    atoms = rng.uniform(-2, 2, (100, 7)).astype(np.float32)
    weight = rng.dirichlet(np.ones(7), 100).astype(np.float32)
    found = project(atoms, weight, SUPPORT)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found @ SUPPORT, (atoms * weight).sum(-1), atol=1e-5)
    np.testing.assert_allclose(project(atoms + 5, weight, SUPPORT), np.eye(9)[[8] * 100], atol=1e-6)


def test_atoms_of_the_support_stay_where_they_are():
    weight = np.random.default_rng(1).dirichlet(np.ones(9), 20).astype(np.float32)
    np.testing.assert_allclose(project(np.tile(SUPPORT, (20, 1)), weight, SUPPORT), weight, atol=1e-6)


def test_the_loss_is_least_where_the_distribution_is_the_target():
    rng = np.random.default_rng(2)
    logits, ones = rng.normal(size=(50, 9)).astype(np.float32), np.ones(50, np.float32)
    same = distributional.categorical_td(logits, 0 * ones, ones, logits, SUPPORT)
    other = distributional.categorical_td(logits + rng.normal(size=(50, 9)), 0 * ones, ones, logits, SUPPORT)
    assert (same < other).all()


def test_the_selector_chooses_and_the_next_logits_are_what_is_learned():
    rng = np.random.default_rng(3)
    logits, following = rng.normal(size=(2, 4, 3, 9)).astype(np.float32)
    reward, discount, action = (
        rng.normal(size=4).astype(np.float32),
        np.full(4, 0.9, np.float32),
        np.array([2, 0, 1, 1]),
    )
    rows, chosen = np.arange(4), np.array([1, 0, 2, 1])
    selector = ops.one_hot(chosen, 3)
    found = distributional.categorical_q_learning(logits, action, reward, discount, following, selector, SUPPORT)
    expected = distributional.categorical_td(logits[rows, action], reward, discount, following[rows, chosen], SUPPORT)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_the_loss_without_huber_is_least_at_the_quantile(fraction):
    target = np.random.default_rng(5).exponential(size=(1, 1001)).astype(np.float32)
    candidates = np.linspace(0, 4, 801, dtype=np.float32)
    losses = [quantile_regression(np.full((1, 1), x), target, np.full(1, fraction), 0.0)[0] for x in candidates]
    assert candidates[np.argmin(losses)] == pytest.approx(np.quantile(target, fraction), abs=0.006)


def test_a_wide_huber_loss_is_a_weighted_square():
    rng = np.random.default_rng(6)
    quantile, target = rng.normal(size=(2, 3, 5)).astype(np.float32)
    fraction = np.linspace(0.1, 0.9, 5, dtype=np.float32)
    error = target[:, None] - quantile[:, :, None]
    expected = (np.where(error < 0, 1 - fraction[:, None], fraction[:, None]) * error**2 / 2).mean(-1).sum(-1)
    np.testing.assert_allclose(quantile_regression(quantile, target, fraction, 100.0), expected, rtol=1e-5)
