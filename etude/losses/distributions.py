"""Policies as distributions: named tuples of arrays, so that every framework takes them for trees.

The last axis of the parameters belongs to the action; all others are batch axes, `[B]` for short. Randomness is an
argument: standard normal numbers for continuous actions, uniform ones in [0, 1) for choices, one per choice. Choices
carry the action mask beside their logits: what it forbids has probability 0 and is never sampled.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from etude import ops
from etude.base.spaces import Discrete, MultiDiscrete, Space
from etude.losses.masks import MaskedValues, allowed_only
from etude.ops import Array

UNMASKED: tuple[()] = ()  # the mask of choices that are all allowed: no leaf of a tree
FORBIDDEN_LOG = math.log(1.2e-38)  # in the place of log 0: finite, so that a weight of 0 makes it 0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)


class Distribution(Protocol):
    """What agents and explorers need of a distribution over actions."""

    def sample(self, noise: Array) -> Array:
        """One action [B, ...] per row of noise."""

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """One action per row of noise, and its log probability (density) [B]."""

    def log_prob(self, action: Array) -> Array:
        """The log probability (density) [B] of actions."""

    def mode(self) -> Array:
        """The action that is taken where nothing is explored."""


class Categorical(NamedTuple):
    """One choice out of n, action [B] integers; noise [B, 1] uniform."""

    logits: Array  # [B, n]
    allowed: Array = UNMASKED  # [B, n] bool

    def sample(self, noise: Array) -> Array:
        return _invert(ops.cumsum(ops.exp(self._shifted())), noise)

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        shifted = self._shifted()
        cumulated = ops.cumsum(ops.exp(shifted))
        action = _invert(cumulated, noise)
        return action, ops.take_last(shifted, action) - ops.log(cumulated[..., -1])

    def log_prob(self, action: Array) -> Array:
        """[B]; `FORBIDDEN_LOG` for an action that is forbidden."""
        return ops.take_last(self.log_probabilities(), action)

    def entropy(self) -> Array:
        """[B], in nats."""
        return -ops.sum(self.probabilities() * self.log_probabilities(), -1)

    def mode(self) -> Array:
        return ops.argmax(self._open())

    def kl(self, other: Categorical) -> Array:
        """KL(self || other) [B], in nats."""
        return ops.sum(self.probabilities() * (self.log_probabilities() - other.log_probabilities()), -1)

    def probabilities(self) -> Array:
        """Of every choice, [B, n]."""
        return self._or_forbidden(ops.softmax(self._open()), 0.0)

    def log_probabilities(self) -> Array:
        """Of every choice, [B, n]; `FORBIDDEN_LOG` where it is forbidden."""
        return self._or_forbidden(ops.log_softmax(self._open()), FORBIDDEN_LOG)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the logits."""
        return self.logits.shape

    @property
    def masked(self) -> bool:
        """Whether some choices may be forbidden."""
        return not isinstance(self.allowed, tuple)

    def _open(self) -> Array:
        return allowed_only(MaskedValues(self.logits, self.allowed)) if self.masked else self.logits

    def _shifted(self) -> Array:
        logits = self._open()
        return logits - ops.max(logits, -1, keepdims=True)

    def _or_forbidden(self, x: Array, value: float) -> Array:
        return ops.where(self.allowed, x, value) if self.masked else x


def _invert(cumulated: Array, noise: Array) -> Array:
    """The choice [B] at which the cumulated weights [B, n] pass the noise [B, 1]. They are not normalised: then
    `noise * total < total` holds in float32 too, and no rounding leads to a choice of weight 0."""
    return ops.sum(cumulated <= noise * cumulated[..., -1:], -1)


class MultiCategorical(NamedTuple):
    """m independent choices, action [B, m] integers; noise [B, m] uniform."""

    logits: tuple[Array, ...]  # m of [B, n_i]
    allowed: tuple[Array, ...] = UNMASKED  # m of [B, n_i] bool

    def parts(self) -> list[Categorical]:
        """The choices, one by one."""
        masks = self.allowed or (UNMASKED,) * len(self.logits)
        return [Categorical(logits, allowed) for logits, allowed in zip(self.logits, masks, strict=True)]

    def sample(self, noise: Array) -> Array:
        return ops.stack([part.sample(noise[..., i : i + 1]) for i, part in enumerate(self.parts())], -1)

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        drawn = [part.sample_with_log_prob(noise[..., i : i + 1]) for i, part in enumerate(self.parts())]
        return ops.stack([action for action, _ in drawn], -1), sum(log_prob for _, log_prob in drawn)

    def log_prob(self, action: Array) -> Array:
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts()))

    def entropy(self) -> Array:
        return sum(part.entropy() for part in self.parts())

    def mode(self) -> Array:
        return ops.stack([part.mode() for part in self.parts()], -1)

    def kl(self, other: MultiCategorical) -> Array:
        return sum(mine.kl(theirs) for mine, theirs in zip(self.parts(), other.parts(), strict=True))


class Bernoullis(NamedTuple):
    """n independent choices of 0 or 1, action [B, n] integers; noise [B, n] uniform."""

    logits: Array  # [B, n]: of 1

    def sample(self, noise: Array) -> Array:
        return ops.cast(noise < ops.sigmoid(self.logits), "int32")

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        return ops.sum(ops.cast(action, "float32") * self.logits - ops.softplus(self.logits), -1)

    def entropy(self) -> Array:
        return ops.sum(ops.softplus(self.logits) - ops.sigmoid(self.logits) * self.logits, -1)

    def mode(self) -> Array:
        return ops.cast(self.logits > 0, "int32")

    def kl(self, other: Bernoullis) -> Array:
        one = ops.sigmoid(self.logits) * (self.logits - other.logits)
        return ops.sum(one + ops.softplus(other.logits) - ops.softplus(self.logits), -1)


def of_choices(space: Space, logits: Array, mask: Array = UNMASKED) -> Categorical | MultiCategorical | Bernoullis:
    """The distribution over the actions of a Discrete, MultiDiscrete or MultiBinary space, from logits [B, all].

    mask: [B, all] where there is one, 0 for what is forbidden; MultiBinary actions have none.
    """
    both = (logits,) if isinstance(mask, tuple) else (logits, mask > 0)
    if isinstance(space, Discrete):
        return Categorical(*both)
    if isinstance(space, MultiDiscrete):
        ends = space.nvec.cumsum().tolist()
        places = list(zip([0, *ends[:-1]], ends, strict=True))
        return MultiCategorical(*(tuple(x[..., a:b] for a, b in places) for x in both))
    return Bernoullis(logits)


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
