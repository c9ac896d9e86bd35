"""From the contributions of episodes to an estimate: mean, confidence interval, effective sample size."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from etude.adapt.adaptation import effective_count
from etude.base.data import Estimate
from etude.base.errors import ConfigError

LARGE = 1000  # degrees of freedom, from which a series in their inverse is exact to four digits
ANGLES = 20_000  # at which the distribution function of fewer degrees of freedom is integrated


def estimate_of(
    method: str,
    contributions: np.ndarray,
    log_weight: np.ndarray,
    behaviour: float,
    confidence: float,
    skewed: bool,
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
