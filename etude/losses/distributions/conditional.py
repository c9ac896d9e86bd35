"""An autoregressive distribution over several choices."""

from __future__ import annotations

import math
from typing import NamedTuple

from etude import ops
from etude.losses.distributions.choices import UNMASKED, Categorical
from etude.ops import Array


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
