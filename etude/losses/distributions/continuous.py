"""Distributions of continuous actions: normal ones, squashed or not, with noise that may depend on the state, and no
noise; the beta distribution over bounded actions; mixtures; numbers and choices in one action.

First what samples by inversion: quantiles of log-concave densities from standard normal numbers, over `ops` on every
engine. Probabilities of a lower tail are integrals by the double exponential rule for half-infinite intervals (Takahasi
& Mori 1974, doi:10.2977/prims/1195192451): a trapezoidal sum after t = y - scale * exp(s - exp(-s)). The logarithm of
the distribution function of a log-concave density is concave, so that Newton's method on it converges from any start.
No gradient belongs into what is computed so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from etude import ops
from etude.base import trees
from etude.losses.distributions.choices import Categorical
from etude.ops import Array

_NODES, _END = 41, 3.2  # of the trapezoidal sum over s, from -_END to _END
_STEPS = 3  # of Newton's method
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_CLOSEST_PROBABILITY = 1e-7  # to 0 and 1, of a probability in float32


class _Tails(NamedTuple):
    """The nodes of the rule, for numbers [..., 1]."""

    reach: Array  # [1 + nodes], the first one 0: at the number itself
    weight: Array  # [1 + nodes], the first one 0

    @classmethod
    def like(cls, y: Array) -> _Tails:
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
    return _Tails.like(z).below(_log_normal, -ops.abs(z), 1.0)[0]


def normal_cdf(z: Array) -> Array:
    """The distribution function of the standard normal distribution; z and it [..., 1]."""
    tail = normal_tail(z)
    return ops.where(z < 0, tail, 1 - tail)


def normal_quantile(probability: Array) -> Array:
    """Its inverse, [..., 1], for probabilities that are taken for at least 1e-7 and at most 1 - 1e-7.

    The start is Tukey's lambda distribution with lambda = 0.14 (Joiner & Rosenblatt 1971,
    doi:10.1080/01621459.1971.10482275).
    """
    probability = ops.clip(probability, _CLOSEST_PROBABILITY, 1 - _CLOSEST_PROBABILITY)
    tail = ops.minimum(probability, 1 - probability)
    log_tail = ops.log(tail)
    start = 4.91 * (ops.exp(0.14 * log_tail) - ops.exp(0.14 * ops.log(1 - tail)))
    z = _Tails.like(tail).quantile(_log_normal, log_tail, start, 1.0)
    return ops.where(probability < 0.5, z, -z)


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


_CLOSEST_ACTION = 1e-6  # to the bounds, of an action in [0, 1]: where the density is evaluated
_SHIFT = 3  # from where on series of Stirling's kind are used


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
        return 2 * ops.clip(x, _CLOSEST_ACTION, 1 - _CLOSEST_ACTION) - 1

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        """Actions at the very bounds, or beyond them, are taken for those 2e-6 inside."""
        x = ops.clip(0.5 * (action + 1), _CLOSEST_ACTION, 1 - _CLOSEST_ACTION)
        log_x, log_rest = ops.log(x), ops.log1p(-x)
        return ops.sum(_log_density(self.alpha, self.beta)(log_x, log_rest) - log_x - log_rest - _LOG_2, -1)

    def entropy(self) -> Array:
        """[B], in nats."""
        alpha, beta = self.alpha, self.beta
        of_alpha, of_beta, of_both = _digammas(alpha, beta)
        rest = (alpha + beta - 2) * of_both - (alpha - 1) * of_alpha - (beta - 1) * of_beta
        return ops.sum(_log_beta(alpha, beta) + rest + _LOG_2, -1)

    def mode(self) -> Array:
        """The peak; the middle where the distribution is uniform."""
        above, below = self.alpha - 1 + 1e-6, self.beta - 1 + 1e-6
        return (above - below) / (above + below)

    def kl(self, other: Beta) -> Array:
        """KL(self || other) [B], in nats."""
        alpha, beta = self.alpha - other.alpha, self.beta - other.beta
        change = _log_beta(other.alpha, other.beta) - _log_beta(self.alpha, self.beta)
        of_alpha, of_beta, of_both = _digammas(self.alpha, self.beta)
        return ops.sum(change + alpha * of_alpha + beta * of_beta - (alpha + beta) * of_both, -1)

    def bhattacharyya(self, other: Beta) -> Array:
        """The Bhattacharyya distance [B]: minus the log of the integral of the root of both densities' product."""
        middle = _log_beta(0.5 * (self.alpha + other.alpha), 0.5 * (self.beta + other.beta))
        return ops.sum(0.5 * (_log_beta(self.alpha, self.beta) + _log_beta(other.alpha, other.beta)) - middle, -1)


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

    y = _Tails.like(z).quantile(of_log_odds, ops.log(normal_tail(z)), start, scale)
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


def _log_beta(alpha: Array, beta: Array) -> Array:
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


class Mixture(NamedTuple):
    """One of K components with probability softmax(logits): action [B, A]; noise [B, A] normal. Bishop 1994, Mixture
    density networks (Aston University, NCRG/94/004).

    The first number of the noise picks the component, and its place within the component's share is again a normal
    number: one number serves for both (Devroye 1986, Non-uniform random variate generation, II.4). Samples are exact up
    to the rounding of float32. No gradient flows through them.
    """

    logits: Array  # [B, K]
    components: Any  # a `Gaussian` or `Beta` with parameters [B, K, A]

    def sample(self, noise: Array) -> Array:
        probabilities = ops.stop_gradient(ops.softmax(self.logits))
        cumulated = ops.cumsum(probabilities)
        place = normal_cdf(noise[..., :1]) * cumulated[..., -1:]
        last = int(self.logits.shape[-1]) - 1
        choice = ops.minimum(ops.sum(cumulated <= place, -1), last)
        share = ops.expand_dims(ops.take_last(probabilities, choice), -1)
        before = ops.expand_dims(ops.take_last(cumulated, choice), -1) - share
        within = ops.concatenate([normal_quantile((place - before) / share), noise[..., 1:]], -1)
        return ops.stop_gradient(self._component(choice).sample(within))

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        each = self.components.log_prob(ops.expand_dims(action, -2))
        return ops.logsumexp(ops.log_softmax(self.logits) + each)

    def mode(self) -> Array:
        """The mode of the likeliest component: not always that of the mixture, which has no closed form."""
        return self._component(ops.argmax(self.logits)).mode()

    def entropy(self) -> Array:
        """A lower bound of the entropy [B], in nats, from the Bhattacharyya distances of components: exact where they
        are all alike, or do not overlap. The entropy has no closed form. Kolchinsky & Tracey 2017, arXiv:1706.02419.
        """
        one, other = (trees.map(lambda x, axis=axis: ops.expand_dims(x, axis), self.components) for axis in (-2, -3))
        log_weights = ops.log_softmax(self.logits)
        overlap = ops.logsumexp(ops.expand_dims(log_weights, -2) - one.bhattacharyya(other))
        return ops.sum(ops.exp(log_weights) * (self.components.entropy() - overlap), -1)

    def kl(self, other: Mixture) -> Array:
        """An upper bound of KL(self || other) [B], in nats, which compares components in their order: 0 where both are
        the same. The divergence has no closed form. Hershey & Olsen 2007, doi:10.1109/ICASSP.2007.366913.
        """
        weights = ops.softmax(self.logits)
        between = ops.sum(weights * self.components.kl(other.components), -1)
        return Categorical(self.logits).kl(Categorical(other.logits)) + between

    def _component(self, choice: Array) -> Any:
        """The components that were chosen, [B] integers, with parameters [B, A]."""
        return trees.map(lambda x: ops.take_row(x, choice), self.components)


_BELOW_1 = 1 - 2**-24  # the largest float32 below 1


class NumbersAndChoices(NamedTuple):
    """Independent numbers and choices, action [B, A + m]; noise [B, A + m] normal. Whole numbers stand for choices."""

    numbers: Any  # a distribution over [B, A]
    choices: Any  # a `MultiCategorical` of m choices

    def sample(self, noise: Array) -> Array:
        return self._joined(self.numbers.sample(self._first(noise)), self.choices.sample(self._uniform(noise)))

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        numbers, of_numbers = self.numbers.sample_with_log_prob(self._first(noise))
        choices, of_choices = self.choices.sample_with_log_prob(self._uniform(noise))
        return self._joined(numbers, choices), of_numbers + of_choices

    def log_prob(self, action: Array) -> Array:
        choices = ops.cast(self._last(action), "int32")
        return self.numbers.log_prob(self._first(action)) + self.choices.log_prob(choices)

    def entropy(self) -> Array:
        """[B], in nats: the differential entropy of the numbers, and the entropy of the choices."""
        return self.numbers.entropy() + self.choices.entropy()

    def mode(self) -> Array:
        return self._joined(self.numbers.mode(), self.choices.mode())

    def kl(self, other: NumbersAndChoices) -> Array:
        """KL(self || other) [B], in nats."""
        return self.numbers.kl(other.numbers) + self.choices.kl(other.choices)

    def _first(self, x: Array) -> Array:
        return x[..., : -len(self.choices.logits)]

    def _last(self, x: Array) -> Array:
        return x[..., -len(self.choices.logits) :]

    def _uniform(self, noise: Array) -> Array:
        """Numbers in [0, 1) for the choices: one kind of noise for both, so that explorers need not know of two."""
        return ops.minimum(ops.squeeze(normal_cdf(ops.expand_dims(self._last(noise), -1)), -1), _BELOW_1)

    def _joined(self, numbers: Array, choices: Array) -> Array:
        return ops.concatenate([numbers, ops.cast(choices, "float32")], -1)
