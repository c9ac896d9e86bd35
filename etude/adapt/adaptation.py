"""The rules of a run at work: smoothed signals, and the hyperparameters that they have moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from etude.adapt.rule import CAPACITIES, COUNTS, REPLAY_SIZES, SIZES, Adapt
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.events import Adjusted
from etude.optimizers import adjustable_settings
from etude.protocols import Weights

EXPLORATION = ("epsilon", "exploration_noise")  # hyperparameters that explorers read, and losses do not


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
    flat = _flat(gradients)
    return float(flat.var(0, ddof=1).mean())


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
