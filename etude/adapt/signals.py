"""What hyperparameters are adjusted by: numbers that say how much the gradients of a learning phase can be trusted.

Each is a function of arrays. `UnusableSignal` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class UnusableSignal(ValueError):
    """A signal cannot be computed from these numbers."""


def effective_sample_size(priority: np.ndarray) -> float:
    """`1 / sum(p**2)` of priorities [n] normalised to p: as many equally likely rows vary as much. From 1 to n."""
    priority = np.asarray(priority, np.float64).reshape(-1)
    if len(priority) < 2:
        raise UnusableSignal(f"{len(priority)} rows have a priority; an effective sample size takes at least 2")
    if not np.isfinite(priority).all() or (priority < 0).any():
        raise UnusableSignal("priorities are negative, infinite or NaN")
    if not priority.any():
        raise UnusableSignal("all priorities are 0")
    return effective_count(priority)


def effective_count(weight: np.ndarray) -> float:
    """`sum(w)**2 / sum(w**2)` of weights [n] of at least 0, of which one is above. Kish 1965, "Survey Sampling"."""
    scaled = weight / weight.max()  # squares of large or small numbers are neither infinite nor 0
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def gradient_variance(gradients: Sequence[Mapping[str, np.ndarray]]) -> float:
    """The variance of each entry over minibatches, averaged over all entries. gradients: by name, of each minibatch."""
    flat = _flat(gradients)
    return float(flat.var(0, ddof=1).mean())


def gradient_noise(gradients: Sequence[Mapping[str, np.ndarray]], size: int) -> tuple[float, float]:
    """`tr(S)` and `|G|**2` of the covariance S of single examples' gradients and the true gradient G, both without
    bias, so that either may be negative. The ratio of their averages is the noise scale: the batch size at which noise
    and gradient are of one size. McCandlish et al. 2018, An empirical model of large-batch training, arXiv:1812.06162,
    appendix A.1.

    gradients: by name, of M minibatches of `size` examples each; their mean is that of one large batch.
    """
    flat = _flat(gradients)
    many, small = len(flat), np.square(flat).sum(1).mean()
    large = np.square(flat.mean(0)).sum()
    squared = (many * large - small) / (many - 1)  # of the true gradient
    noise = (small - large) * size * many / (many - 1)
    return float(noise), float(squared)


def _flat(gradients: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """[M, entries] float64."""
    if len(gradients) < 2:
        raise UnusableSignal(f"there are gradients of {len(gradients)} minibatches; their noise takes at least 2")
    flat = np.stack([np.concatenate([np.ravel(each[name]) for name in sorted(each)]) for each in gradients])
    if not np.isfinite(flat).all():
        raise UnusableSignal("gradients are infinite or NaN")
    return flat.astype(np.float64)


def smoothed(before: float | None, value: float, smooth: float) -> float:
    """The exponential moving average after `value`: `(1 - smooth) * before + smooth * value`; the value itself where
    there is none before. smooth: from 0 to 1."""
    return value if before is None else (1.0 - smooth) * before + smooth * value
