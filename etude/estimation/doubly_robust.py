"""Doubly robust estimators: values of a model, corrected by reweighted errors of its predictions. Arguments: see
`importance`."""

from __future__ import annotations

import numpy as np

from etude.estimation.importance import discounted, normalised, weights, weights_before


def doubly_robust(reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float) -> np.ndarray:
    """Unbiased whatever the model; the better the model, the smaller the variance. Jiang & Li 2016,
    arXiv:1511.03722, equation 10, with the recursion written as a sum."""
    error = weights(log_ratio) * discounted(reward - q, gamma)
    return (error + weights_before(log_ratio) * discounted(v, gamma)).sum(1)


def weighted_doubly_robust(
    reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float
) -> np.ndarray:
    """The same with weights as shares in those of all episodes at a step. Biased and consistent. Thomas & Brunskill
    2016, arXiv:1604.00923, section 5."""
    error = normalised(discounted(reward - q, gamma), weights(log_ratio))
    return error + normalised(discounted(v, gamma), weights_before(log_ratio))
