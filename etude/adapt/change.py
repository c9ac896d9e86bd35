"""How far one hyperparameter moves: a factor on the value that the user gave it, within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from etude.base.schedules import scaled

SIZES = ("batch_size", "minibatch_size")  # move in powers of 2, so that each is compiled once
BATCHES = (*SIZES, "rollout_length")  # what the examples of a batch follow from
COUNTS = (*SIZES, "gradient_steps", "epochs", "train_every")  # whole numbers that rules of every run may change
REPLAY_SIZES = ("rollout_length", "buffer_size")  # those that rules may change where the kind of learning can
WHOLE = (*COUNTS, *REPLAY_SIZES, "target_update_every")
CAPACITIES = ("buffer_size",)  # at most what the user gave
FRACTIONS = ("gamma", "gae_lambda", "beta1", "beta2")  # adjusted by their distance from 1
UNIT = ("epsilon", "exploration_noise", "tau")  # at most 1 where the user gave at most 1
TINY = 1e-6  # ratio


@dataclass(frozen=True)
class Change:
    """What a signal does to a hyperparameter.

    sign: 1 where it grows with the signal, -1 where it shrinks. rate: the largest relative change at once; None: any.
    low, high: bounds; None: a tenth of the given value and ten times as much, a quarter and four times for whole
        numbers. scale: multiplies the ratio of the signal to its target. align: whole numbers are multiples of this;
        None: sizes of batches move in powers of 2, others by 1. powers: others move in powers of 2, too.
    """

    name: str
    sign: int
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    scale: float = 1.0
    align: int | None = None
    powers: bool = False

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
        if self.name in UNIT:
            return float(scaled(given, factor))  # type: ignore[arg-type]  # a number of a number
        if self.name not in WHOLE:
            return given * factor
        if self.align is not None:
            return max(1.0, self.align * max(1.0, (given * factor + 1e-9) // self.align))
        if self._doubles:
            power, (least, most) = 2.0 ** round(math.log2(factor)), self._limits(given)
            factor = power if least <= power <= most else factor
        return max(1.0, round(given * factor))

    def reached(self, given: float) -> tuple[int, ...]:
        """Of a whole number: the smallest and the largest value, the one that was given, and where values have a common
        step, the second smallest."""
        values = [*(self.value(factor, given) for factor in self._limits(given)), given]
        values += [] if self.align is None else [min(min(values) + self.align, max(values))]
        return tuple(sorted({int(value) for value in values}))

    def movable(self, given: float) -> bool:
        """Whether a factor changes anything: it does not where the user gave 0, or 1 of a fraction."""
        return bool(1.0 - given if self.name in FRACTIONS else given)

    @property
    def _doubles(self) -> bool:
        return self.align is None and (self.powers or self.name in SIZES)

    def _limits(self, given: float) -> tuple[float, float]:
        """The smallest and the largest factor."""
        widest = 4.0 if self.name in WHOLE else 10.0
        low, high = self.low, self.high
        if self.name in FRACTIONS:
            given, low, high = 1.0 - given, None if high is None else 1.0 - high, None if low is None else 1.0 - low
        if not given:
            return 1.0, 1.0
        if self.name in UNIT:
            high = min(10.0 * given if high is None else high, max(given, 1.0))
        least, most = 1.0 / widest if low is None else low / given, widest if high is None else high / given
        if self.name in FRACTIONS:
            most = min(most, 1.0 / given)  # none is below 0
        if self.name in CAPACITIES:
            most = min(most, 1.0)
        if self._doubles:  # rounded to a power of 2, a factor stays within the bounds
            lowest, highest = 2.0 ** math.ceil(math.log2(least)), 2.0 ** math.floor(math.log2(most))
            if lowest <= highest:  # else no power of 2 is within them
                return lowest, highest
        return least, most
