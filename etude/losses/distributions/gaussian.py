"""Normal distributions over Box actions, squashed or not, with noise that may depend on the state, and no noise."""

from __future__ import annotations

import math
from typing import NamedTuple

from etude import ops
from etude.ops import Array

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)


class Gaussian(NamedTuple):
    """Independent normal distributions, action [B, A]; noise [B, A] normal. Samples are differentiable."""

    mean: Array  # [B, A]
    log_std: Array  # [B, A]

    def sample(self, noise: Array) -> Array:
        return self.mean + ops.exp(self.log_std) * noise

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        return self.sample(noise), ops.sum(-0.5 * ops.square(noise) - self.log_std - _HALF_LOG_2PI, -1)

    def log_prob(self, action: Array) -> Array:
        scaled = (action - self.mean) * ops.exp(-self.log_std)
        return ops.sum(-0.5 * ops.square(scaled) - self.log_std - _HALF_LOG_2PI, -1)

    def entropy(self) -> Array:
        return ops.sum(self.log_std + (0.5 + _HALF_LOG_2PI), -1)

    def mode(self) -> Array:
        return self.mean

    def kl(self, other: Gaussian) -> Array:
        log_ratio = self.log_std - other.log_std
        distance = ops.square((self.mean - other.mean) * ops.exp(-other.log_std))
        return 0.5 * ops.sum(ops.exp(2 * log_ratio) + distance - 1 - 2 * log_ratio, -1)

    def bhattacharyya(self, other: Gaussian) -> Array:
        """The Bhattacharyya distance [B]: minus the log of the integral of the root of both densities' product."""
        variance = 0.5 * (ops.exp(2 * self.log_std) + ops.exp(2 * other.log_std))
        log_ratio = ops.log(variance) - self.log_std - other.log_std
        return ops.sum(0.125 * ops.square(self.mean - other.mean) / variance + 0.5 * log_ratio, -1)


class TanhGaussian(NamedTuple):
    """tanh of a `Gaussian`, action [B, A] in [-1, 1]; noise [B, A] normal. Samples are differentiable.

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C. Its entropy has no closed form; `-log_prob` of a
    sample estimates it.
    """

    mean: Array  # [B, A], before tanh
    log_std: Array  # [B, A]

    def sample(self, noise: Array) -> Array:
        return ops.tanh(self.mean + ops.exp(self.log_std) * noise)

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        x, log_prob = Gaussian(self.mean, self.log_std).sample_with_log_prob(noise)
        return ops.tanh(x), log_prob - _log_slope(x)

    def log_prob(self, action: Array) -> Array:
        """Actions at the very bounds, where the density has no inverse in float32, are taken for +-(1 - 1e-6)."""
        inside = ops.clip(action, -1 + 1e-6, 1 - 1e-6)
        x = 0.5 * (ops.log1p(inside) - ops.log1p(-inside))
        return Gaussian(self.mean, self.log_std).log_prob(x) - _log_slope(x)

    def mode(self) -> Array:
        """tanh of the mean: the median of the actions."""
        return ops.tanh(self.mean)

    def kl(self, other: TanhGaussian) -> Array:
        """That of the Gaussians: a one-to-one map leaves it as it is."""
        return Gaussian(*self).kl(Gaussian(*other))


def _log_slope(x: Array) -> Array:
    """sum of log(1 - tanh(x)**2) over the last axis, in a form that does not lose digits where tanh saturates."""
    return ops.sum(2 * (_LOG_2 - x - ops.softplus(-2 * x)), -1)


class StateDependentGaussian(NamedTuple):
    """A policy whose noise may be a function of the state (gSDE); made by `state_dependent`. Samples take noise [B, A]
    as those of `policy` do: `standard_noise`, or independent normal numbers, which have the same distribution."""

    policy: Gaussian | TanhGaussian
    scale: Array  # [B, A, H]: features times the standard deviations of their coefficients

    def standard_noise(self, matrix: Array) -> Array:
        """The noise [B, A] that standard normal matrices [B, A, H] give in these states."""
        return ops.sum(self.scale * matrix, -1) * ops.exp(-self.policy.log_std)

    def sample(self, noise: Array) -> Array:
        return self.policy.sample(noise)

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        return self.policy.sample_with_log_prob(noise)

    def log_prob(self, action: Array) -> Array:
        return self.policy.log_prob(action)

    def entropy(self) -> Array:
        """[B], in nats; of a `Gaussian`."""
        return self.policy.entropy()  # type: ignore[union-attr]

    def mode(self) -> Array:
        return self.policy.mode()


def state_dependent(
    kind: type[Gaussian] | type[TanhGaussian], mean: Array, features: Array, log_std: Array
) -> StateDependentGaussian:
    """The policy mean + M z of features z, whose coefficients M are independently normal with standard deviations
    exp(log_std). The variances of actions are those of M z, plus 1e-6. Raffin, Kober & Stulp 2021, arXiv:2005.05719.

    mean: [B, A], before tanh for a `TanhGaussian`. features: [B, H]. log_std: [A, H], of the coefficients.
    """
    std = ops.exp(log_std)
    variance = ops.matmul(ops.square(features), ops.swapaxes(ops.square(std), 0, 1))
    return StateDependentGaussian(kind(mean, 0.5 * ops.log(variance + 1e-6)), ops.expand_dims(features, 1) * std)


class Deterministic(NamedTuple):
    """The one action that a policy without randomness takes, action [B, A]."""

    action: Array  # [B, A]

    def mode(self) -> Array:
        return self.action
