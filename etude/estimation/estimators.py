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

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from etude.adapt.rules import effective_count
from etude.base.data import Estimate
from etude.base.errors import ConfigError


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


def _weights_before(log_ratio: np.ndarray) -> np.ndarray:
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


def doubly_robust(reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float) -> np.ndarray:
    """Unbiased whatever the model; the better the model, the smaller the variance. Jiang & Li 2016,
    arXiv:1511.03722, equation 10, with the recursion written as a sum."""
    error = weights(log_ratio) * discounted(reward - q, gamma)
    return (error + _weights_before(log_ratio) * discounted(v, gamma)).sum(1)


def weighted_doubly_robust(
    reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float
) -> np.ndarray:
    """The same with weights as shares in those of all episodes at a step. Biased and consistent. Thomas & Brunskill
    2016, arXiv:1604.00923, section 5."""
    error = normalised(discounted(reward - q, gamma), weights(log_ratio))
    return error + normalised(discounted(v, gamma), _weights_before(log_ratio))


def direct(reward: np.ndarray, log_ratio: np.ndarray, q: np.ndarray, v: np.ndarray, gamma: float) -> np.ndarray:
    """The model's values of the first observations. As right as the model: no weights correct it."""
    return v[:, 0].astype(np.float64)


Estimator = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]
"""From reward, log_ratio, q, v [E, T] and gamma to contributions [E]; see this module."""


class Method(NamedTuple):
    """An estimator, whether it reads ratios of probabilities and values of a model, and whether its weights are shares
    in those of all episodes."""

    estimator: Estimator
    ratios: bool
    values: bool
    shares: bool = False


METHODS = {
    "is": Method(importance_sampling, True, False),
    "pdis": Method(per_decision, True, False),
    "wis": Method(weighted, True, False, shares=True),
    "trajectory_wis": Method(weighted_trajectories, True, False, shares=True),
    "dm": Method(direct, False, True),
    "dr": Method(doubly_robust, True, True),
    "wdr": Method(weighted_doubly_robust, True, True, shares=True),
    "fqe": Method(direct, False, True),
}
SIMULATION = "simulation"  # episodes of the environment, beside the estimates


def chosen(methods: str | Iterable[str]) -> tuple[str, ...]:
    """The names in their order, once each; ConfigError for one that there is not, and where there are none."""
    names = tuple(dict.fromkeys((methods,) if isinstance(methods, str) else methods))
    known = [*METHODS, SIMULATION]
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no method {name!r} of estimation. There are {', '.join(known)}.")
    if not names:
        raise ConfigError(f"methods names no method of estimation. Give at least one of {', '.join(known)}.")
    return names


LARGE = 1000  # degrees of freedom, from which a series in their inverse is exact to four digits
ANGLES = 20_000  # at which the distribution function of fewer degrees of freedom is integrated


def estimate_of(
    method: str, contributions: np.ndarray, log_weight: np.ndarray, behaviour: float, confidence: float, skewed: bool
) -> Estimate:
    """The estimate whose mean the contributions [E] are. log_weight: [E] of the whole episodes. behaviour: the mean
    discounted return of the data. skewed: see `interval`."""
    value = float(contributions.mean())
    low, high = interval(contributions, confidence, skewed)
    gain = value / behaviour if behaviour > 0 else float("nan")
    largest = float(np.exp(log_weight.max()))
    return Estimate(method, value, low, high, behaviour, gain, effective_size(log_weight), largest)


def interval(contributions: np.ndarray, confidence: float, skewed: bool) -> tuple[float, float]:
    """Student's interval of the mean of contributions [E], which products of ratios give heavy tails: the degrees of
    freedom are those of the estimated variance (Satterthwaite 1946, doi:10.2307/3002019), at most E - 1.

    skewed: correct for skewness, too, by Hall's transformation (1992, doi:10.1111/j.2517-6161.1992.tb01872.x); for
    plain means over episodes, not for the linear parts of weighted means. NaN of a single episode.
    """
    check_confidence(confidence)
    size, mean = len(contributions), float(contributions.mean())
    if size < 2 or not np.isfinite(contributions).all():
        return float("nan"), float("nan")
    centred = contributions - mean
    variance = float(np.square(centred).mean())
    if not variance > 0:
        return mean, mean
    kurtosis = float((centred**4).mean()) / variance**2
    degrees = min(size - 1.0, max(1.0, 2 * size / max(kurtosis - 1, 1e-9)))
    reach, error = student(0.5 + confidence / 2, degrees), math.sqrt(variance / (size - 1))
    skewness = float((centred**3).mean()) / variance**1.5 if skewed else 0.0
    low, high = (mean - error * _unskewed(score, skewness, size) for score in (reach, -reach))
    return min(low, mean), max(high, mean)


def _unskewed(score: float, skewness: float, size: int) -> float:
    """The studentised mean whose Hall transform, nearly symmetric, is this score."""
    if abs(skewness) < 1e-6:
        return score
    root = math.sqrt(size)
    cube = 1 + skewness / root * (score - skewness / (6 * root))
    return float(3 * root / skewness * (np.cbrt(cube) - 1))


def student(share: float, degrees: float) -> float:
    """The quantile of Student's distribution at a share above 0.5, for any number of degrees of freedom from 1 on."""
    if degrees > LARGE:  # Cornish & Fisher 1938
        z = NormalDist().inv_cdf(share)
        return z + (z**3 + z) / (4 * degrees)
    angle = np.linspace(0, np.pi / 2, ANGLES + 1)  # whose tangent is the score over the root of the degrees
    density = np.cos(angle) ** (degrees - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(math.sqrt(degrees) * np.tan(np.interp(2 * share - 1, area / area[-1], angle)))


def effective_size(log_weight: np.ndarray) -> float:
    """`effective_count` of weights, of their logarithms [E]; 0 where all weights are."""
    largest = log_weight.max()
    if np.isneginf(largest):
        return 0.0
    return effective_count(np.exp(log_weight - largest))


def check_confidence(confidence: float) -> None:
    """Raise ConfigError unless a confidence is between 0 and 1."""
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ConfigError(f"confidence = {confidence!r}; expected a number between 0 and 1, such as 0.95.")
