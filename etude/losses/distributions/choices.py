"""Distributions over choices: one, several independent ones, or several of two; and autoregressive ones."""

from __future__ import annotations

import math
from typing import NamedTuple

from etude import ops
from etude.base.spaces import Discrete, MultiDiscrete, Space
from etude.losses.masks import MaskedValues, allowed_only
from etude.ops import Array

UNMASKED: tuple[()] = ()  # the mask of choices that are all allowed: no leaf of a tree
FORBIDDEN_LOG = math.log(1.2e-38)  # in the place of log 0: finite, so that a weight of 0 makes it 0


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


class Conditional(NamedTuple):
    """m choices, each given those before it, p(a1) p(a2 | a1) p(a3 | a1, a2) ...: action [B, m] integers; noise [B, m]
    uniform.

    Part i holds logits for each of the P_i = n_1 ... n_(i-1) combinations of the choices before it, in the order in
    which the last of these changes fastest. Log probabilities, entropy, divergence and mode are exact; all but the
    first enumerate the n_1 ... n_m actions.
    """

    logits: tuple[Array, ...]  # m of [B, P_i, n_i]
    allowed: tuple[Array, ...] = UNMASKED  # m of [B, P_i, n_i] bool, or [B, 1, n_i] where choices before do not matter

    def parts(self) -> list[Categorical]:
        """Each choice, given every combination of those before it: of logits [B, P_i, n_i]."""
        masks = self.allowed or (UNMASKED,) * len(self.logits)
        return [Categorical(logits, allowed) for logits, allowed in zip(self.logits, masks, strict=True)]

    def sample(self, noise: Array) -> Array:
        return self.sample_with_log_prob(noise)[0]

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        actions, log_probs, before = [], [], None
        for i, part in enumerate(self.parts()):
            action, log_prob = _given(part, before).sample_with_log_prob(noise[..., i : i + 1])
            actions.append(action)
            log_probs.append(log_prob)
            before = _following(before, action, part)
        return ops.stack(actions, -1), sum(log_probs)

    def log_prob(self, action: Array) -> Array:
        found, before = 0.0, None
        for i, part in enumerate(self.parts()):
            found = found + _given(part, before).log_prob(action[..., i])
            before = _following(before, action[..., i], part)
        return found

    def entropy(self) -> Array:
        """[B], in nats."""
        log_probabilities = self.log_probabilities()
        return -ops.sum(ops.exp(log_probabilities) * log_probabilities, -1)

    def kl(self, other: Conditional) -> Array:
        """KL(self || other) [B], in nats."""
        log_probabilities = self.log_probabilities()
        return ops.sum(ops.exp(log_probabilities) * (log_probabilities - other.log_probabilities()), -1)

    def mode(self) -> Array:
        """The likeliest combination, which need not begin with the likeliest first choice."""
        index, choices = ops.argmax(self.log_probabilities()), []
        for logits in reversed(self.logits):
            n = int(logits.shape[-1])
            choices.append(index % n)
            index = index // n
        return ops.stack(choices[::-1], -1)

    def log_probabilities(self) -> Array:
        """Of all n_1 ... n_m actions, [B, all], in the order in which the last choice changes fastest."""
        batch = (-1, *tuple(self.logits[0].shape)[1:-2])
        found = None
        for part in self.parts():
            each = part.log_probabilities()
            joint = each if found is None else ops.expand_dims(found, -1) + each
            found = ops.reshape(joint, (*batch, math.prod(tuple(each.shape)[-2:])))
        return found


def _given(part: Categorical, before: Array | None) -> Categorical:
    """The choice given one combination of those before it, [B]; None: it is the first."""
    if not part.masked:
        return Categorical(_row(part.logits, before))
    return Categorical(_row(part.logits, before), _row(part.allowed, before))


def _row(x: Array, index: Array | None) -> Array:
    return x[..., 0, :] if index is None or x.shape[-2] == 1 else ops.take_row(x, index)


def _following(before: Array | None, action: Array, part: Categorical) -> Array:
    """The number of the combination that a choice ends."""
    return action if before is None else before * int(part.logits.shape[-1]) + action
