"""What the runs of several seeds come to, and how two sets of runs compare: the definitions of Agarwal et al. 2021,
"Deep reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

Statistic = Literal["iqm", "mean", "median"]
Band = Literal["bootstrap", "range"]

RESAMPLES = 2000
CONFIDENCE = (2.5, 97.5)  # percentiles
DRAWN = 40_000_000  # numbers that are resampled for a picture at most: curves of over 100 seeds have fewer resamples
GRID = 200  # points of a curve that is aggregated over seeds


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean without the lowest and the highest quarter (rounded down) along an axis."""
    count = values.shape[axis]
    return np.sort(values, axis).take(range(count // 4, count - count // 4), axis).mean(axis)


STATISTICS: dict[Statistic, tuple[str, Callable[..., Any]]] = {
    "iqm": ("interquartile mean", interquartile_mean),
    "mean": ("mean", np.mean),
    "median": ("median", np.median),
}
BANDS: dict[Band, str] = {"bootstrap": "95 % interval", "range": "their range"}


def interval(values: np.ndarray, statistic: Statistic = "iqm", most: int = RESAMPLES) -> np.ndarray:
    """[2, ...], the ends of the 95 % percentile interval of a statistic over S seeds [S, ...], by resampling them.

    most: resamples.
    """
    count, over = len(values), STATISTICS[statistic][1]
    resamples = int(np.clip(DRAWN // max(1, values.size), 100, most))
    picks = np.random.default_rng(0).integers(0, count, (resamples, count))
    ends = [np.percentile(over(column[picks], 1), CONFIDENCE) for column in values.reshape(count, -1).T]
    return np.reshape(ends, (-1, 2)).T.reshape(2, *values.shape[1:])


def aggregate(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    band: Band = "bootstrap",
    statistic: Statistic = "iqm",
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, ...]:
    """(steps, statistic, low, high) over S curves of (steps, returns), each [G], on the steps that all cover."""
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    shared = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = shared[(shared >= first) & (shared <= last)]
    grid = shared if len(shared) <= GRID else np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, steps, returns) for steps, returns in curves])
    centre = STATISTICS[statistic][1](values, 0)
    if len(curves) == 1:
        return grid, centre, centre, centre
    low, high = (values.min(0), values.max(0)) if band == "range" else interval(values, statistic, resamples)
    return grid, centre, low, high


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(share, low, high), each [G]: of the runs [S] that score above each threshold [G], with its 95 % interval. The
    run-score distribution of section 4.2, for one task."""
    above = (scores[:, None] > thresholds).astype(float)
    return above.mean(0), *interval(above, "mean")


def probability_of_improvement(
    scores: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """(probability, low, high) that a run scores above another one on a task drawn at random, where equal scores count
    half; the interval resamples the runs of each task. Section 4.3.

    scores, others: for each task those of the runs of one set, and of the other.
    """
    rng, mean, resampled = np.random.default_rng(0), 0.0, np.zeros(RESAMPLES)
    for ours, theirs in zip(scores, others, strict=True):
        wins = (ours[:, None] > theirs) + (ours[:, None] == theirs) / 2
        mean += wins.mean() / len(scores)
        n, m = (rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) for count in wins.shape)  # how often each
        resampled += (n @ wins * m).sum(1) / wins.size / len(scores)
    low, high = np.percentile(resampled, CONFIDENCE)
    return float(mean), float(low), float(high)
