"""Rules: which signal moves which hyperparameter, how far and how fast: a factor on the value that the user gave it,
within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.schedules import scaled
from etude.optimizers import PREFIX

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


SIGNALS = ("ess", "gradient_variance", "noise_scale", "kl")

# 1: grows with the signal. Where samples are worth more (a larger effective sample size), steps are bolder; where
# gradients are noisier, or the policy moves further, they are more careful.
_BOLD = ("learning_rate", "clip_range", "tau", "gradient_steps", "epochs", "priority_exponent")
_BOLDER, _CAREFUL = dict.fromkeys(_BOLD, 1), dict.fromkeys(_BOLD, -1)
_LARGER = dict.fromkeys(BATCHES, 1)
_CAUTION = (
    "importance_exponent", "epsilon", "exploration_noise", "weight_decay", "beta1", "beta2", "target_update_every",
    "train_every",
)  # fmt: skip
_NOISY = {**_CAREFUL, **_LARGER, **dict.fromkeys(_CAUTION, 1), "gamma": -1}
DIRECTIONS: dict[str, dict[str, int]] = {
    "ess": {**_BOLDER, **_LARGER, **dict.fromkeys(_CAUTION, -1), "gamma": 1, "buffer_size": 1},
    "gradient_variance": _NOISY,
    "noise_scale": _NOISY,
    "kl": {**_CAREFUL, **_LARGER},
}


@dataclass(frozen=True)
class Adapt:
    """A hyperparameter that is multiplied, every so many learning phases, by the ratio of a smoothed signal to its
    target, or divided by it, as its direction says.

    signal: ess (the effective sample size of the priorities, or of the errors of the last phase, as a fraction of their
        number), gradient_variance, noise_scale (both of parts of a minibatch), or kl (the metric `approx_kl`).
    hyperparameter: a float of the config, optimizer.beta1, optimizer.beta2 or optimizer.weight_decay, or batch_size,
        minibatch_size, gradient_steps, epochs or train_every; on-policy rollout_length, off-policy buffer_size (how
        many of the newest transitions are kept, at most as many as the config says). Sizes of batches and
        rollout_length move in powers of 2, so that each is compiled once. gamma, gae_lambda and the betas are moved by
        their distance from 1.
    target: of the smoothed signal; None: its first value, and for a batch size by noise_scale the batch size itself.
    low, high: bounds of the hyperparameter; None: a tenth of the config's value and ten times as much, a quarter and
        four times for whole numbers.
    align: a whole number is a multiple of this, in the place of powers of 2, or of 1; so are its bounds and what the
        config says.
    """

    signal: str
    hyperparameter: str
    target: float | None = None
    low: float | None = None
    high: float | None = None
    rate: float = 0.1  # the largest relative change at once
    smooth: float = 0.2  # weight of a new value in the moving average of the signal
    every: int = 10  # learning phases from one signal, and change, to the next
    parts: int = 4  # of a minibatch, for signals of gradients
    direction: int = 0  # 1: grows with the signal, -1: shrinks; 0: as the table in docs/adapting.md says
    align: int | None = None

    def __post_init__(self) -> None:
        checks.declared(self)
        if self.signal not in SIGNALS:
            raise ConfigError(f"Adapt: signal = {self.signal!r}; expected one of {', '.join(SIGNALS)}.")
        checks.counts(self, "every", "parts")
        checks.positive(self, "rate")
        checks.fractions(self, "smooth")
        if not self.smooth or self.parts < 2:
            raise ConfigError(f"Adapt: smooth = {self.smooth}, parts = {self.parts}; expected above 0, and at least 2.")
        for name in ("target", "low", "high"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"Adapt: {name} = {value}; expected a positive number, or None.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"Adapt: low = {self.low} is above high = {self.high}.")
        if self.align is not None:
            checks.counts(self, "align")
            if self._name not in WHOLE:
                raise ConfigError(
                    f"Adapt: align = {self.align}; {self.hyperparameter} is no whole number. Leave it out."
                )
            for name in ("low", "high"):
                if (value := getattr(self, name)) is not None and value % self.align:
                    raise ConfigError(f"Adapt: {name} = {value:g}; expected a multiple of align = {self.align}.")
        if self.direction not in (-1, 0, 1):
            raise ConfigError(f"Adapt: direction = {self.direction}; expected 1, -1, or 0 for the table's.")
        if not self.sign:
            known = ", ".join(DIRECTIONS[self.signal])
            raise ConfigError(
                f"Adapt: {self.hyperparameter} by {self.signal} has no direction of its own; known are {known}. Give "
                "direction=1 (it grows with the signal) or direction=-1."
            )

    @property
    def sign(self) -> int:
        """1: the hyperparameter grows with the signal; -1: it shrinks; 0: nobody knows."""
        return self.direction or DIRECTIONS[self.signal].get(self._name, 0)

    @property
    def change(self) -> Change:
        """What the signal does to the hyperparameter."""
        powers = self._name == "rollout_length"  # each is compiled
        return Change(self._name, self.sign, self.rate, self.low, self.high, align=self.align, powers=powers)

    @property
    def _name(self) -> str:
        return self.hyperparameter.removeprefix(PREFIX)

    @classmethod
    def parse(cls, text: str) -> Adapt:
        """The rule that `signal:hyperparameter` stands for."""
        signal, colon, name = text.partition(":")
        if not (signal and colon and name):
            raise ConfigError(f"adapt = {text!r}; expected a signal and a hyperparameter, such as ess:batch_size.")
        return cls(signal, name.replace("-", "_"))


def rules_of(given: Any) -> tuple[Adapt, ...]:
    """One rule, a text such as `ess:batch_size`, or an iterable of them, as a tuple. ConfigError for what is none."""
    each = (given,) if isinstance(given, str | Adapt) else given
    if not isinstance(each, Iterable):
        raise ConfigError(f"adapt = {given!r}; expected rules, such as Adapt('ess', 'batch_size') or 'ess:batch_size'.")
    rules = tuple(Adapt.parse(rule) if isinstance(rule, str) else rule for rule in each)
    for rule in rules:
        if not isinstance(rule, Adapt):
            raise ConfigError(f"adapt holds {rule!r}; expected Adapt, or a text such as 'ess:batch_size'.")
    return rules
