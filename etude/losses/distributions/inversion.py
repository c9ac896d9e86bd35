"""Sampling by inversion: quantiles of log-concave densities from standard normal numbers, over `ops` on every engine.

Probabilities of a lower tail are integrals by the double exponential rule for half-infinite intervals (Takahasi & Mori
1974, doi:10.2977/prims/1195192451): a trapezoidal sum after t = y - scale * exp(s - exp(-s)). The logarithm of the
distribution function of a log-concave density is concave, so that Newton's method on it converges from any start.
No gradient belongs into what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from etude import ops
from etude.ops import Array

_NODES, _END = 41, 3.2  # of the trapezoidal sum over s, from -_END to _END
_STEPS = 3  # of Newton's method
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_CLOSEST = 1e-7  # to 0 and 1, of a probability in float32


class Tails(NamedTuple):
    """The nodes of the rule, for numbers [..., 1]."""

    reach: Array  # [1 + nodes], the first one 0: at the number itself
    weight: Array  # [1 + nodes], the first one 0

    @classmethod
    def like(cls, y: Array) -> Tails:
        """As arrays of the kind of y."""
        s = ops.linspace(-_END, _END, _NODES, y)
        decay = ops.exp(-s)
        reach = ops.exp(s - decay)
        none = reach[:1] * 0.0
        width = 2 * _END / (_NODES - 1)
        return cls(ops.concatenate([none, reach], 0), ops.concatenate([none, width * (1 + decay) * reach], 0))

    def below(self, log_density: Callable[[Array], Array], y: Array, scale: Array | float) -> tuple[Array, Array]:
        """(the probability below y, the density at y), both [..., 1].

        log_density: of numbers [..., nodes]. scale: [..., 1], about a standard deviation.
        """
        density = ops.exp(log_density(y - scale * self.reach))
        return scale * ops.sum(density * self.weight, -1, keepdims=True), density[..., :1]

    def quantile(
        self, log_density: Callable[[Array], Array], log_probability: Array, start: Array, scale: Array | float
    ) -> Array:
        """The number below which a probability of at most a half lies, all [..., 1]. start: a number near it."""
        y = start
        for _ in range(_STEPS):
            below, density = self.below(log_density, y, scale)
            y = y - (ops.log(below) - log_probability) * below / density
        return y


def _log_normal(x: Array) -> Array:
    return -0.5 * ops.square(x) - _HALF_LOG_2PI


def normal_tail(z: Array) -> Array:
    """The probability that a standard normal number is below -|z|; z and it [..., 1]."""
    return Tails.like(z).below(_log_normal, -ops.abs(z), 1.0)[0]


def normal_cdf(z: Array) -> Array:
    """The distribution function of the standard normal distribution; z and it [..., 1]."""
    tail = normal_tail(z)
    return ops.where(z < 0, tail, 1 - tail)


def normal_quantile(probability: Array) -> Array:
    """Its inverse, [..., 1], for probabilities that are taken for at least 1e-7 and at most 1 - 1e-7.

    The start is Tukey's lambda distribution with lambda = 0.14 (Joiner & Rosenblatt 1971,
    doi:10.1080/01621459.1971.10482275).
    """
    probability = ops.clip(probability, _CLOSEST, 1 - _CLOSEST)
    tail = ops.minimum(probability, 1 - probability)
    log_tail = ops.log(tail)
    start = 4.91 * (ops.exp(0.14 * log_tail) - ops.exp(0.14 * ops.log(1 - tail)))
    z = Tails.like(tail).quantile(_log_normal, log_tail, start, 1.0)
    return ops.where(probability < 0.5, z, -z)
