"""Rules: which signal moves which hyperparameter, how far and how fast."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from etude.adapt.change import BATCHES, WHOLE, Change
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.optimizers import PREFIX

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
        self._check_alignment()
        if self.direction not in (-1, 0, 1):
            raise ConfigError(f"Adapt: direction = {self.direction}; expected 1, -1, or 0 for the table's.")
        if not self.sign:
            known = ", ".join(DIRECTIONS[self.signal])
            raise ConfigError(
                f"Adapt: {self.hyperparameter} by {self.signal} has no direction of its own; known are {known}. Give "
                "direction=1 (it grows with the signal) or direction=-1."
            )

    def _check_alignment(self) -> None:
        if self.align is None:
            return
        checks.counts(self, "align")
        if self._name not in WHOLE:
            raise ConfigError(f"Adapt: align = {self.align}; {self.hyperparameter} is no whole number. Leave it out.")
        for name in ("low", "high"):
            if (value := getattr(self, name)) is not None and value % self.align:
                raise ConfigError(f"Adapt: {name} = {value:g}; expected a multiple of align = {self.align}.")

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
