"""From the contributions of episodes to an estimate: mean, confidence interval, effective sample size."""

from __future__ import annotations

import numpy as np

from etude.adapt.signals import effective_count
from etude.base.data import Estimate
from etude.base.errors import ConfigError

RESAMPLES = 2000
TOGETHER = 2**22  # numbers that are resampled at a time


def estimate_of(
    method: str,
    contributions: np.ndarray,
    log_weight: np.ndarray,
    behaviour: float,
    confidence: float,
    rng: np.random.Generator,
) -> Estimate:
    """The estimate whose mean the contributions [E] are. log_weight: [E] of the whole episodes. behaviour: the mean
    discounted return of the data. rng: resamples the episodes."""
    value = float(contributions.mean())
    low, high = interval(contributions, confidence, rng)
    gain = value / behaviour if behaviour > 0 else float("nan")
    largest = float(np.exp(log_weight.max()))
    return Estimate(method, value, low, high, behaviour, gain, effective_size(log_weight), largest)


def interval(contributions: np.ndarray, confidence: float, rng: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of contributions [E]. Efron 1979, doi:10.1214/aos/1176344552."""
    check_confidence(confidence)
    if not np.isfinite(contributions).all():
        return float("nan"), float("nan")
    size = len(contributions)
    portion = max(1, TOGETHER // size)
    means = np.concatenate(
        [
            contributions[rng.integers(0, size, (min(portion, RESAMPLES - done), size))].mean(1)
            for done in range(0, RESAMPLES, portion)
        ]
    )
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


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
