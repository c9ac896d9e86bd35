"""Evolution strategies, in NumPy: they need no gradient of a framework. Salimans et al. 2017, arXiv:1703.03864."""

from __future__ import annotations

import numpy as np

from etude.base.errors import ConfigError
from etude.losses.shapes import shapes


@shapes(fitness="*B")
def centred_ranks(fitness: np.ndarray) -> np.ndarray:
    """Ranks spread from -0.5, the worst, to 0.5, the best, any shape, float32; equal ones share the mean of theirs.

    Salimans et al. 2017, section 2.1: what is left of the fitness is its order. Of a single number it is 0.
    ConfigError where a number is NaN, which has no rank.
    """
    if np.isnan(fitness).any():
        raise ConfigError(
            f"centred_ranks: {np.isnan(fitness).sum()} of {np.size(fitness)} numbers are NaN; expected the fitness of "
            "each member. Give -inf to a member that failed."
        )
    _, level, count = np.unique(fitness, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - 0.5 * (count + 1)  # of each level: the mean of the ranks 0, 1, ... of its members
    highest = max(np.size(fitness) - 1, 1)
    centre = 0.5 * (np.size(fitness) - 1)
    return ((rank - centre) / highest)[level].reshape(np.shape(fitness)).astype(np.float32)


@shapes(utility="2 n", noise="n P", deviation="")
def antithetic_gradient(utility: np.ndarray, noise: np.ndarray, deviation: float) -> np.ndarray:
    """The gradient of the expected utility: `sum of (utility[0] - utility[1]) * noise / (2 * n * deviation)`, [P].

    Salimans et al. 2017, algorithm 1 with mirrored noise. utility: [2, n], of the parameters plus and minus
    `deviation * noise`, as `centred_ranks` shapes all 2 * n together; noise: [n, P] standard normal.
    """
    difference = utility[0] - utility[1]
    return (difference @ noise / (2 * len(noise) * deviation)).astype(np.float32)
