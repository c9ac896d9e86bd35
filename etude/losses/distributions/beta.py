"""The beta distribution over bounded actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from etude import ops
from etude.losses.distributions.inversion import Tails, normal_tail
from etude.ops import Array

_CLOSEST = 1e-6  # to the bounds, of an action in [0, 1]: where the density is evaluated
_SHIFT = 3  # from where on series of Stirling's kind are used
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)


class Beta(NamedTuple):
    """Independent beta distributions, stretched to [-1, 1]: action [B, A]; noise [B, A] normal. For parameters of at
    least 1, with which the density has one peak or none. Chou, Maturana & Scherer 2017, Improving stochastic policy
    gradients in continuous control with deep reinforcement learning using the beta distribution (ICML).

    Samples are exact up to the rounding of float32: the distribution function is inverted (see `inversion`). No
    gradient flows through them.
    """

    alpha: Array  # [B, A], at least 1
    beta: Array  # [B, A], at least 1

    def sample(self, noise: Array) -> Array:
        x = _quantile(ops.stop_gradient(self.alpha), ops.stop_gradient(self.beta), noise)
        return 2 * ops.clip(x, _CLOSEST, 1 - _CLOSEST) - 1

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        """Actions at the very bounds, or beyond them, are taken for those 2e-6 inside."""
        x = ops.clip(0.5 * (action + 1), _CLOSEST, 1 - _CLOSEST)
        log_x, log_rest = ops.log(x), ops.log1p(-x)
        return ops.sum(_log_density(self.alpha, self.beta)(log_x, log_rest) - log_x - log_rest - _LOG_2, -1)

    def entropy(self) -> Array:
        """[B], in nats."""
        alpha, beta = self.alpha, self.beta
        of_alpha, of_beta, of_both = _digammas(alpha, beta)
        rest = (alpha + beta - 2) * of_both - (alpha - 1) * of_alpha - (beta - 1) * of_beta
        return ops.sum(log_beta(alpha, beta) + rest + _LOG_2, -1)

    def mode(self) -> Array:
        """The peak; the middle where the distribution is uniform."""
        above, below = self.alpha - 1 + 1e-6, self.beta - 1 + 1e-6
        return (above - below) / (above + below)

    def kl(self, other: Beta) -> Array:
        """KL(self || other) [B], in nats."""
        alpha, beta = self.alpha - other.alpha, self.beta - other.beta
        change = log_beta(other.alpha, other.beta) - log_beta(self.alpha, self.beta)
        of_alpha, of_beta, of_both = _digammas(self.alpha, self.beta)
        return ops.sum(change + alpha * of_alpha + beta * of_beta - (alpha + beta) * of_both, -1)

    def bhattacharyya(self, other: Beta) -> Array:
        """The Bhattacharyya distance [B]: minus the log of the integral of the root of both densities' product."""
        middle = log_beta(0.5 * (self.alpha + other.alpha), 0.5 * (self.beta + other.beta))
        return ops.sum(0.5 * (log_beta(self.alpha, self.beta) + log_beta(other.alpha, other.beta)) - middle, -1)


def _log_density(alpha: Array, beta: Array) -> Callable[[Array, Array], Array]:
    """The log density of the log odds of x, from log x and log(1 - x). Logarithms of ratios to the mean stay small near
    the peak, so that no digits are lost for large parameters. Loader 2000, Fast and accurate computation of binomial
    probabilities."""
    total = alpha + beta
    peak = 0.5 * ops.log(alpha / total * beta) - _HALF_LOG_2PI - _stirling_errors(alpha, beta)
    log_mean, log_other = ops.log(alpha / total), ops.log(beta / total)
    return lambda log_x, log_rest: alpha * (log_x - log_mean) + beta * (log_rest - log_other) + peak


def _quantile(alpha: Array, beta: Array, noise: Array) -> Array:
    """The number in [0, 1] whose probability is that of the standard normal noise. The start is Abramowitz & Stegun
    1964, 26.5.22, in log odds."""
    alpha, beta, noise = (ops.expand_dims(x, -1) for x in (alpha, beta, noise))
    low, z = noise < 0, -ops.abs(noise)
    a, b = ops.where(low, alpha, beta), ops.where(low, beta, alpha)  # then what is below z is a half at most
    first, second = 1 / (2 * a - 1), 1 / (2 * b - 1)
    spread, part = 2 / (first + second), (ops.square(z) - 3) / 6
    w = -z * ops.sqrt(spread + part) / spread - (second - first) * (part + 5 / 6 - 2 / (3 * spread))
    start = ops.log(a / b) - 2 * w
    scale = ops.sqrt(1 / a + 1 / b + 0.5 * (1 / ops.square(a) + 1 / ops.square(b)))
    density = _log_density(a, b)

    def of_log_odds(y: Array) -> Array:
        rest = -ops.softplus(y)
        return density(y + rest, rest)

    y = Tails.like(z).quantile(of_log_odds, ops.log(normal_tail(z)), start, scale)
    return ops.squeeze(ops.sigmoid(ops.where(low, y, -y)), -1)


def stirling_error(x: Array) -> Array:
    """lgamma(x) minus Stirling's (x - 1/2) log x - x + log(2 pi) / 2, for x above 0.
    Abramowitz & Stegun 1964, 6.1.41 after the recurrence 6.1.15."""
    found = 0.0
    for _ in range(_SHIFT):
        found = found + ((x + 0.5) * ops.log1p(1 / x) - 1)
        x = x + 1
    square = 1 / ops.square(x)
    return found + (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / x


def log_beta(alpha: Array, beta: Array) -> Array:
    """The logarithm of the beta function of numbers above 0."""
    total = alpha + beta
    stirling = alpha * ops.log(alpha / total) + beta * ops.log(beta / total) - 0.5 * ops.log(alpha / total * beta)
    return stirling + _HALF_LOG_2PI + _stirling_errors(alpha, beta)


def _stirling_errors(alpha: Array, beta: Array) -> Array:
    """That of the logarithm of the beta function."""
    found = stirling_error(ops.stack([alpha, beta, alpha + beta], 0))
    return found[0] + found[1] - found[2]


def _digammas(alpha: Array, beta: Array) -> tuple[Array, Array, Array]:
    """Of alpha, beta and their sum."""
    found = digamma(ops.stack([alpha, beta, alpha + beta], 0))
    return found[0], found[1], found[2]


def digamma(x: Array) -> Array:
    """The derivative of lgamma, for x above 0. Abramowitz & Stegun 1964, 6.3.18 after the recurrence 6.3.5."""
    found = 0.0
    for _ in range(_SHIFT):
        found = found - 1 / x
        x = x + 1
    square = 1 / ops.square(x)
    return found + ops.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
