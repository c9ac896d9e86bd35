"""Importance sampling: recorded rewards, reweighted by how much likelier the target policy takes the same actions.

Precup, Sutton & Singh 2000, Eligibility traces for off-policy policy evaluation, ICML, sections 2 and 3.
Thomas 2015, Safe reinforcement learning (thesis, Amherst), section 3.

Every function takes arrays [E, T] of E episodes, filled up with zeros after their ends, and returns contributions [E],
whose mean is the estimate. So the weight of an ended episode stays what it was at its end, and stays in every
normaliser. (RLlib's divides by the number of episodes that reached a step; where every step pays the same reward, its
estimate is the behaviour's own return.)

reward; log_ratio: log of the target's over the behaviour's probability of the action; q, v: values of the action and of
the observation under the target; gamma: the discount factor.
"""

from __future__ import annotations

import numpy as np


def importance_sampling(
    reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float
) -> np.ndarray:
    """Whole returns, each weighted by the product of its ratios. Unbiased."""
    return weights(log_ratio)[:, -1] * discounted(reward, gamma).sum(1)


def per_decision(reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float) -> np.ndarray:
    """Each reward, weighted by the product of the ratios up to it. Unbiased."""
    return (weights(log_ratio) * discounted(reward, gamma)).sum(1)


def weighted(reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float) -> np.ndarray:
    """Each reward, weighted by its share in the weights of all episodes at its step. Biased and consistent."""
    return normalised(discounted(reward, gamma), weights(log_ratio))


def weighted_trajectories(
    reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float
) -> np.ndarray:
    """Whole returns, each weighted by its share in the weights of all episodes. Biased and consistent."""
    return normalised(discounted(reward, gamma).sum(1, keepdims=True), weights(log_ratio)[:, -1:])


def weights(log_ratio: np.ndarray) -> np.ndarray:
    """[E, T] the products of the ratios up to each step."""
    return np.exp(np.cumsum(log_ratio, 1))


def weights_before(log_ratio: np.ndarray) -> np.ndarray:
    """[E, T] the products of the ratios before each step, 1 at the first."""
    return np.concatenate([np.ones((len(log_ratio), 1)), weights(log_ratio)[:, :-1]], 1)


def discounted(values: np.ndarray, gamma: float) -> np.ndarray:
    """[E, T] each value, times gamma to the power of its step."""
    return gamma ** np.arange(values.shape[1]) * values


def normalised(terms: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The contributions [E] to the sum of K weighted means: terms [E, K], with the weights [E, K].

    A weighted mean is a ratio of two means over episodes. Its linear part is what each episode contributes: their mean
    is the estimate itself, and their spread that of the estimate (the delta method). NaN where all weights of a column
    are 0.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        total = weight.mean(0)
        mean = (weight * terms).mean(0) / total
        return (mean + weight * (terms - mean) / total).sum(1)
