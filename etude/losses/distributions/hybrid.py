"""Numbers and choices in one action."""

from __future__ import annotations

from typing import Any, NamedTuple

from etude import ops
from etude.losses.distributions.inversion import normal_cdf
from etude.ops import Array

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
