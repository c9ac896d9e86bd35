"""Losses of discriminators against their definitions with probabilities."""

import numpy as np

from etude.losses.adversarial import airl_logits, gail_reward, log_odds_reward, log_reward
from etude.losses.distributional import binary_cross_entropy

LOGITS = np.linspace(-8, 8, 33)
D = 1 / (1 + np.exp(-LOGITS))  # the probability that a step is the expert's


def test_the_loss_is_the_cross_entropy_of_who_took_the_step():
    np.testing.assert_allclose(binary_cross_entropy(LOGITS, np.ones(33)), -np.log(D), rtol=1e-9)
    np.testing.assert_allclose(binary_cross_entropy(LOGITS, np.zeros(33)), -np.log(1 - D), rtol=1e-9)


def test_the_reward_is_high_where_a_step_is_taken_for_the_experts():
    np.testing.assert_allclose(gail_reward(LOGITS), -np.log(1 - D), rtol=1e-9)
    assert (np.diff(gail_reward(LOGITS)) > 0).all()
    assert (gail_reward(LOGITS) > 0).all()


def test_the_other_forms_of_the_reward_are_below_0_or_change_sign_where_nobody_can_tell():
    np.testing.assert_allclose(log_reward(LOGITS), np.log(D), rtol=1e-9)
    assert (log_reward(LOGITS) < 0).all()
    np.testing.assert_allclose(log_odds_reward(LOGITS), np.log(D) - np.log(1 - D), rtol=1e-9, atol=1e-12)


def test_airl_weighs_the_exponential_of_the_reward_against_the_probability_of_the_action():
    rng = np.random.default_rng(0)
    reward, potential, following = rng.normal(size=(3, 20))
    probability, discount = rng.random(20), np.where(rng.random(20) < 0.3, 0, 0.9)
    f = reward + discount * following - potential
    expert = np.exp(f) / (np.exp(f) + probability)
    logits = airl_logits(reward, discount, potential, following, np.log(probability))
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), expert, rtol=1e-9)
    np.testing.assert_allclose(logits, np.log(expert) - np.log(1 - expert), rtol=1e-9)
