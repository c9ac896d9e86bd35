"""Hyperparameters that adjust themselves while a run goes on: signals, and the rules that follow them.

A rule says which signal moves which hyperparameter, how far and how fast: a factor on the value that the user gave it,
within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.events import Adjusted
from etude.base.schedules import scaled
from etude.optimizers import PREFIX, adjustable_settings
from etude.protocols import Weights

SIZES = ("batch_size", "minibatch_size")  # move in powers of 2, so that each is compiled once
BATCHES = (*SIZES, "rollout_length")  # what the examples of a batch follow from
COUNTS = (*SIZES, "gradient_steps", "epochs", "train_every")  # whole numbers that rules of every run may change
REPLAY_SIZES = ("rollout_length", "buffer_size")  # those that rules may change where the kind of learning can
WHOLE = (*COUNTS, *REPLAY_SIZES, "target_update_every")
CAPACITIES = ("buffer_size",)  # at most what the user gave
FRACTIONS = ("gamma", "gae_lambda", "beta1", "beta2")  # adjusted by their distance from 1
UNIT = ("epsilon", "exploration_noise", "tau")  # at most 1 where the user gave at most 1
TINY = 1e-6  # ratio
EXPLORATION = ("epsilon", "exploration_noise")  # hyperparameters that explorers read, and losses do not


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
        checks.one_of(self, "signal", SIGNALS)
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


class LearningPhase(NamedTuple):
    """What a learning phase was like.

    priorities: returns those of the replay, [rows]; None without them. td_error, ratio: of the sampled rows, where the
    losses report them; advantages count as errors. gradients: called with M, returns those of M parts of a minibatch,
    by name, and the size of a part.
    """

    step: int
    metrics: Mapping[str, float]
    priorities: Callable[[], np.ndarray | None]
    td_error: np.ndarray | None
    ratio: np.ndarray | None
    gradients: Callable[[int], tuple[list[Weights], int]]


class Adaptation:
    """Rules, and what they have changed so far. Hyperparameters are multiplied by factors, so that schedules go on
    underneath.

    config: of the agent. adjustable: the names of the floats that may change while a run goes on. sizes: those of
    `REPLAY_SIZES` that may.
    """

    def __init__(self, rules: tuple[Adapt, ...], config: Any, adjustable: tuple[str, ...], sizes: tuple[str, ...] = ()):
        _check(rules, config, (*adjustable, *sizes))
        self.rules = rules
        names = [rule.hyperparameter for rule in rules]
        self._counts = {name: getattr(config, name) for name in names if name in (*COUNTS, *REPLAY_SIZES)}
        self._changes = {rule.hyperparameter: rule.change for rule in rules}
        self._factors = dict.fromkeys(names, 1.0)
        self._average: list[Any] = [None] * len(rules)  # of noise scales: [tr(S), |G|**2]
        self._target = [rule.target for rule in rules]
        self._unusable = [""] * len(rules)  # why there was no signal
        self._phases = 0

    def floats(self, given: Mapping[str, float]) -> dict[str, float]:
        """The present values of floats that schedules have at `given`."""
        return {name: self._value(name, value) if name in self._factors else value for name, value in given.items()}

    def counts(self) -> dict[str, int]:
        """The present values of the whole numbers that rules change."""
        return {name: int(self._value(name, base)) for name, base in self._counts.items()}

    def exploration(self) -> dict[str, float]:
        """The factors on hyperparameters that explorers read."""
        return {name: factor for name, factor in self._factors.items() if name in EXPLORATION}

    def observe(self, phase: LearningPhase, given: Mapping[str, float]) -> tuple[Adjusted, ...]:
        """Take in a learning phase; returns the changes that follow. given: the floats, as schedules have them."""
        self._phases += 1
        bases = {**given, **self._counts}
        return tuple(event for i in range(len(self.rules)) for event in self._followed(i, phase, bases))

    def state(self) -> dict[str, Any]:
        """Plain data from which `restore` goes on."""
        return {
            "factors": dict(self._factors),
            "averages": list(self._average),
            "targets": list(self._target),
            "phases": self._phases,
        }

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("factors", "averages", "targets", "phases"))
        for factor in held["factors"].fields(self._factors).values():
            factor.number(1e-9, 1e9)
        held["phases"].whole(0)
        for name in ("averages", "targets"):
            values = held[name].items()
            if len(values) != len(self.rules):
                held[name].refuse(f"{len(self.rules)} numbers, one for each rule")
            for value in values:
                for number in value.items(2) if isinstance(value.value, list) else [value]:
                    if number.value is not None:
                        number.number()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self._factors, self._average = dict(state["factors"]), list(state["averages"])
        self._target, self._phases = list(state["targets"]), state["phases"]

    def _followed(self, i: int, phase: LearningPhase, bases: Mapping[str, float]) -> Iterator[Adjusted]:
        """What rule number i makes of a phase."""
        rule = self.rules[i]
        if self._phases % rule.every:
            return
        name, base = rule.hyperparameter, float(bases[rule.hyperparameter])
        before = self._value(name, base)
        try:
            average = self._smoothed(i, signal_of(rule, phase))
        except UnusableSignal as error:
            if self._unusable[i] != str(error):  # said once
                self._unusable[i] = str(error)
                yield Adjusted(phase.step, name, before, before, f"unchanged: {error}")
            return
        self._unusable[i] = ""
        if self._target[i] is None and not _follows_size(rule):
            self._target[i] = average
        if target := before if _follows_size(rule) else self._target[i]:
            self._factors[name] = rule.change.moved(self._factors[name], base, average / target)
        after = self._value(name, base)
        if after != before:
            yield Adjusted(phase.step, name, before, after, f"{rule.signal} {average:.3g}")

    def _smoothed(self, i: int, signal: float | tuple[float, float]) -> float:
        """The moving average of a signal; of noise scales the ratio of those of numerator and denominator."""
        smooth, before = self.rules[i].smooth, self._average[i]
        if not isinstance(signal, tuple):
            self._average[i] = average = smoothed(before, signal, smooth)
            return average
        noise, squared = before if isinstance(before, list) else (None, None)  # earlier versions kept the ratio's
        self._average[i] = [smoothed(noise, signal[0], smooth), smoothed(squared, signal[1], smooth)]
        noise, squared = self._average[i]
        if noise <= 0 or squared <= 0:
            raise UnusableSignal("the gradient is smaller than its noise can tell")
        return noise / squared

    def _value(self, name: str, given: float) -> float:
        """A hyperparameter as it is now, where the config has it at `given`."""
        return self._changes[name].value(self._factors[name], given)


def exploration_rules(config: Any) -> tuple[str, ...]:
    """The hyperparameters of exploration that the rules of a config change."""
    return tuple(rule.hyperparameter for rule in config.adapt if rule.hyperparameter in EXPLORATION)


def values_reached(config: Any, name: str) -> tuple[int, ...]:
    """What bounds a whole number of a config while its rules change it (see `Change.reached`); its own value where none
    does."""
    given = getattr(config, name)
    rule = next((rule for rule in config.adapt if rule.hyperparameter == name), None)
    return (given,) if rule is None or given is None else rule.change.reached(given)


def signal_of(rule: Adapt, phase: LearningPhase) -> float | tuple[float, float]:
    """The signal of a rule after a learning phase, of noise scales numerator and denominator; UnusableSignal says why
    there is none."""
    if rule.signal == "kl":
        if "approx_kl" not in phase.metrics:
            raise UnusableSignal("this algorithm reports no approx_kl")
        value = float(phase.metrics["approx_kl"])
    elif rule.signal == "ess":
        weight = _weights(phase)
        value = effective_sample_size(weight) / weight.size
    else:
        gradients, size = phase.gradients(rule.parts)
        if rule.signal == "noise_scale":
            return gradient_noise(gradients, size)
        value = gradient_variance(gradients)
    if not math.isfinite(value):
        raise UnusableSignal(f"{rule.signal} is {value}")
    return value


def _follows_size(rule: Adapt) -> bool:
    """Whether the target of a rule is the present size of a batch."""
    return rule.target is None and rule.signal == "noise_scale" and rule.hyperparameter in SIZES


def _weights(phase: LearningPhase) -> np.ndarray:
    """What the effective sample size is of: the priorities, or the errors of the sampled rows, times their ratios."""
    if (priorities := phase.priorities()) is not None:
        return priorities
    if phase.td_error is None:
        raise UnusableSignal("this algorithm reports no errors of its samples, and its replay has no priorities")
    error = np.abs(np.asarray(phase.td_error, np.float64)).reshape(-1)
    return error if phase.ratio is None else error * np.asarray(phase.ratio, np.float64).reshape(-1)


def _check(rules: tuple[Adapt, ...], config: Any, adjustable: tuple[str, ...]) -> None:
    """Raise ConfigError where a rule cannot be followed."""
    possible = [name for name in COUNTS if getattr(config, name, None)]
    possible += [*adjustable, *adjustable_settings(config.optimizer)]
    names = [rule.hyperparameter for rule in rules]
    for name in names:
        if name not in possible:
            raise ConfigError(
                f"{type(config).__name__}: adapt = {name}; expected a hyperparameter that may change while a run goes "
                f"on: {', '.join(sorted(set(possible)))}."
            )
        if names.count(name) > 1:
            raise ConfigError(f"{type(config).__name__}: two rules of adapt change {name}; expected one for each.")
    for rule in rules:
        name = rule.hyperparameter
        given = getattr(config, name, None)  # which has to go with the values that the rule gives
        if rule.align is not None and given % rule.align:  # type: ignore[operator]  # aligned ones are whole numbers
            raise ConfigError(
                f"{type(config).__name__}: {name} = {given}, and its rule has align = {rule.align}; expected a "
                "multiple of it. Change one of them."
            )
        if name in CAPACITIES and rule.high is not None and rule.high > given:  # type: ignore[operator]
            raise ConfigError(
                f"{type(config).__name__}: {name} = {given}, and its rule has high = {rule.high:g}; the replay has "
                f"room for {given} transitions. Raise {name}, or leave high out."
            )


class UnusableSignal(ValueError):
    """A signal, which says how much the gradients of a learning phase can be trusted, cannot be computed from these
    numbers."""


def effective_sample_size(priority: np.ndarray) -> float:
    """`1 / sum(p**2)` of priorities [n] normalised to p: as many equally likely rows vary as much. From 1 to n."""
    priority = np.asarray(priority, np.float64).reshape(-1)
    if len(priority) < 2:
        raise UnusableSignal(f"{len(priority)} rows have a priority; an effective sample size takes at least 2")
    if not np.isfinite(priority).all() or (priority < 0).any():
        raise UnusableSignal("priorities are negative, infinite or NaN")
    if not priority.any():
        raise UnusableSignal("all priorities are 0")
    return effective_count(priority)


def effective_count(weight: np.ndarray) -> float:
    """`sum(w)**2 / sum(w**2)` of weights [n] of at least 0, of which one is above. Kish 1965, "Survey Sampling"."""
    scaled = weight / weight.max()  # squares of large or small numbers are neither infinite nor 0
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def gradient_variance(gradients: Sequence[Mapping[str, np.ndarray]]) -> float:
    """The variance of each entry over minibatches, averaged over all entries. gradients: by name, of each minibatch."""
    return float(_flat(gradients).var(0, ddof=1).mean())


def gradient_noise(gradients: Sequence[Mapping[str, np.ndarray]], size: int) -> tuple[float, float]:
    """`tr(S)` and `|G|**2` of the covariance S of single examples' gradients and the true gradient G, both without
    bias, so that either may be negative. The ratio of their averages is the noise scale: the batch size at which noise
    and gradient are of one size. McCandlish et al. 2018, An empirical model of large-batch training, arXiv:1812.06162,
    appendix A.1.

    gradients: by name, of M minibatches of `size` examples each; their mean is that of one large batch.
    """
    flat = _flat(gradients)
    many, small = len(flat), np.square(flat).sum(1).mean()
    large = np.square(flat.mean(0)).sum()
    squared = (many * large - small) / (many - 1)  # of the true gradient
    noise = (small - large) * size * many / (many - 1)
    return float(noise), float(squared)


def _flat(gradients: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """[M, entries] float64."""
    if len(gradients) < 2:
        raise UnusableSignal(f"there are gradients of {len(gradients)} minibatches; their noise takes at least 2")
    flat = np.stack([np.concatenate([np.ravel(each[name]) for name in sorted(each)]) for each in gradients])
    if not np.isfinite(flat).all():
        raise UnusableSignal("gradients are infinite or NaN")
    return flat.astype(np.float64)


def smoothed(before: float | None, value: float, smooth: float) -> float:
    """The exponential moving average after `value`: `(1 - smooth) * before + smooth * value`; the value itself where
    there is none before. smooth: from 0 to 1."""
    return value if before is None else (1.0 - smooth) * before + smooth * value
