"""How far one hyperparameter moves: a factor on the value that the user gave it, within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

SIZES = ("batch_size", "minibatch_size")  # move in powers of 2, so that each is compiled once
COUNTS = (*SIZES, "gradient_steps", "epochs", "train_every")  # whole numbers that a rule may change
WHOLE = (*COUNTS, "rollout_length", "target_update_every")
FRACTIONS = ("gamma", "gae_lambda", "beta1", "beta2")  # adjusted by their distance from 1
PROBABILITIES = ("epsilon", "tau")  # at most 1
TINY = 1e-6  # ratio


@dataclass(frozen=True)
class Change:
    """What a signal does to a hyperparameter.

    sign: 1 where it grows with the signal, -1 where it shrinks. rate: the largest relative change at once; None: any.
    low, high: bounds; None: a tenth of the given value and ten times as much, a quarter and four times for whole
        numbers. scale: multiplies the ratio of the signal to its target. align: whole numbers are multiples of this;
        None: sizes of batches move in powers of 2, others by 1.
    """

    name: str
    sign: int
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    scale: float = 1.0
    align: int | None = None

    def moved(self, factor: float, given: float, ratio: float) -> float:
        """The factor on `given` after the signal was seen at `ratio` of its target."""
        sign = -self.sign if self.name in FRACTIONS else self.sign
        wanted = max(ratio, TINY) ** sign * self.scale
        if self.rate is not None:
            reach = 1.0 + self.rate
            wanted = min(max(wanted, 1.0 / reach), reach)
        low, high = self._limits(given)
        return min(max(factor * wanted, low), high)

    def value(self, factor: float, given: float) -> float:
        """A hyperparameter that the user gave as `given`, at this factor."""
        if self.name in FRACTIONS:
            return 1.0 - (1.0 - given) * factor
        if self.name not in WHOLE:
            return given * factor
        if self.align is not None:
            return max(1.0, self.align * max(1.0, (given * factor + 1e-9) // self.align))
        return max(1.0, round(given * (2.0 ** round(math.log2(factor)) if self.name in SIZES else factor)))

    def movable(self, given: float) -> bool:
        """Whether a factor changes anything: it does not where the user gave 0, or 1 of a fraction."""
        return bool(1.0 - given if self.name in FRACTIONS else given)

    def _limits(self, given: float) -> tuple[float, float]:
        """The smallest and the largest factor."""
        widest = 4.0 if self.name in WHOLE else 10.0
        low, high = self.low, self.high
        if self.name in FRACTIONS:
            given, low, high = 1.0 - given, None if high is None else 1.0 - high, None if low is None else 1.0 - low
        if not given:
            return 1.0, 1.0
        if self.name in PROBABILITIES:
            high = min(10.0 * given if high is None else high, 1.0)
        least, most = 1.0 / widest if low is None else low / given, widest if high is None else high / given
        if self.name in SIZES and self.align is None:  # rounded to a power of 2, a factor stays within the bounds
            return 2.0 ** math.ceil(math.log2(least)), 2.0 ** math.floor(math.log2(most))
        return least, most
