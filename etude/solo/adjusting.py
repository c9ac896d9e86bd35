"""Hyperparameters of an agent of one's own that adjust themselves: which there are, and how far each moves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.adapt.change import Change
from etude.adapt.rule import DIRECTIONS
from etude.adapt.signals import UnusableSignal, effective_sample_size, gradient_variance, smoothed
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.events import Adjusted
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay import Prioritised, Uniform
from etude.solo.knobs import KNOBS, Knob, Knobs

RATE_KEYS, SCALE_KEYS = ("rate", "min", "max", "smooth"), ("scale", "min", "max")
SMOOTH = 0.2  # of the documents


@dataclass
class Position:
    """Where a hyperparameter is: a factor on what the user gave. value: as it was written last."""

    given: float
    factor: float = 1.0
    value: float | None = None


class Adjuster:
    """Moves the hyperparameters of one agent by signals of its replay and its gradients, and keeps what they have come
    to. The learner reports what changes.

    rng: draws the batches whose gradients are compared.
    """

    def __init__(self, knobs: Knobs, rng: np.random.Generator):
        self._knobs, self._learner, self._buffer, self._rng = knobs, knobs.learner, knobs.learner.buffer, rng
        self._average: dict[str, float] = {}  # by signal and hyperparameter
        self._target: dict[str, float] = {}  # where the user gave none
        self._position: dict[str, Position] = {}
        self._unusable: dict[str, str] = {}

    def priorities(self, column: int | None = None) -> np.ndarray:
        """Those of the stored rows, alpha included: of all, or of one process. ConfigError without PR=True."""
        selector = self._buffer.selector
        if not isinstance(selector, Prioritised):
            raise ConfigError(
                "The effective sample size is that of priorities, and this agent draws its transitions without. Give "
                "set(..., PR=True), or adjust by gradient noise: adabatch, or adjust with target_noise."
            )
        if column is None:
            return selector.all_priorities(self._buffer.ring)
        count = self._buffer.ring.environments
        if not 0 <= column < count:
            raise ConfigError(f"adjust_window_size: p = {column}; expected a process from 0 to {count - 1}, or None.")
        return selector.priorities(self._buffer.ring, column)

    def by_effective_sample_size(
        self, smooth: float, target: float | None, params: Mapping[str, Any]
    ) -> tuple[Adjusted, ...]:
        """Follow `1 / sum(p**2)` of the priorities."""
        weight = self.priorities()
        return self._follow("ess", lambda: self._effective_sample_size(weight), smooth, target, params)

    def by_gradient_noise(
        self, batches: int, smooth: float, target: float, params: Mapping[str, Any], jit_compile: bool
    ) -> tuple[Adjusted, ...]:
        """Follow the variance of gradients over so many minibatches."""
        return self._follow(
            "gradient_variance", lambda: self._gradient_variance(batches, jit_compile), smooth, target, params
        )

    def _effective_sample_size(self, weight: np.ndarray) -> float:
        if not self._buffer.selector.reported:  # type: ignore[attr-defined]  # `priorities` has checked what it is
            _unusable("all priorities are those of new transitions: no errors have been reported yet")
        return effective_sample_size(weight)

    def _gradient_variance(self, batches: int, jit_compile: bool) -> float:
        ring, size = self._buffer.ring, self._learner.count_of("batch") or 1
        if len(ring) < max(2, size):
            _unusable(f"the pool holds {len(ring)} transitions, and a batch is {size}")
        rows, weight = Uniform().select(ring, batches, size, self._rng)
        view = self._buffer.view
        view.adjust(self._learner.hyper())
        return gradient_variance(self._knobs.engine.gradients(view(ring, rows, weight), jit_compile))

    def _follow(
        self,
        signal: str,
        measure: Callable[[], float],
        smooth: float,
        target: float | None,
        params: Mapping[str, Any],
    ) -> tuple[Adjusted, ...]:
        moves = [move for name, given in params.items() if given is not None
                 for move in self._moves(signal, name.removesuffix("_params"), given, smooth)]  # fmt: skip
        if target is not None and not (np.isfinite(target) and target > 0):
            raise ConfigError(f"adjust: target = {target!r}; expected a positive number.")
        try:
            value = measure()
            if not np.isfinite(value):
                _unusable(f"{signal} is {value}")
        except UnusableSignal as error:
            events: Any = tuple(self._unchanged(signal, str(error), knob) for knob, _, _ in moves)
        else:
            events = tuple(event for move in moves for event in self._moved(signal, value, target, *move))
        found = tuple(event for event in events if event is not None)
        self._learner.adjusted += found
        return found

    def _moves(self, signal: str, name: str, given: Any, smooth: float) -> Iterator[tuple[Knob, Change, float]]:
        """The hyperparameters of one argument, each with its change and the weight of new values in its average."""
        knobs = self._knobs(name)
        own = _checked(name, knobs[0], given)
        smooth = own.pop("smooth", None) or (SMOOTH if "rate" in _keys(knobs[0]) else smooth)
        if not 0 < smooth <= 1:
            raise ConfigError(f"{name}_params: smooth = {smooth!r}; expected above 0 and at most 1.")
        change = Change(knobs[0].like, DIRECTIONS[signal][knobs[0].like], **own)
        for knob in knobs:
            yield knob, change, smooth

    def _moved(
        self, signal: str, value: float, target: float | None, knob: Knob, change: Change, smooth: float
    ) -> Iterator[Adjusted]:
        """What the value of a signal does to one hyperparameter."""
        key = f"{signal} {knob.name}"
        self._average[key] = average = smoothed(self._average.get(key), value, smooth)
        target = self._target.setdefault(key, average) if target is None else target
        before, at = knob.read(), self._at(knob)
        if knob.like == "batch_size":
            change = self._of_batch(change, int(at.given))
        if not change.movable(at.given):
            event = self._unchanged(signal, f"it is {before:g}, and moves in proportion to what it is", knob)
            yield from () if event is None else (event,)
        elif target:
            at.factor = change.moved(at.factor, at.given, average / target)
            self._unusable.pop(key, None)
        wanted = change.value(at.factor, at.given)
        if wanted != before:
            knob.write(wanted)
        at.value = knob.read()
        if at.value != before:
            yield Adjusted(self._learner.progress.step, knob.name, before, at.value, f"{signal} {average:.3g}")

    def _of_batch(self, change: Change, given: int) -> Change:
        """The change of a batch size: at most what the pool holds, as nothing is learned before; and always a multiple
        of the number of replicas."""
        replicas, low, high = self._knobs.replicas, change.low, change.high
        high = max(1.0, min(4.0 * given if high is None else high, len(self._buffer)))
        if replicas == 1:
            return dataclasses.replace(change, high=high)
        if change.align is not None:
            return dataclasses.replace(change, high=high, align=math.lcm(change.align, replicas))
        parts = given // replicas
        least = given // (parts & -parts)  # halved until the part of a replica is odd
        return dataclasses.replace(change, low=max(least, given / 4 if low is None else low), high=max(least, high))

    def _at(self, knob: Knob) -> Position:
        """Where a hyperparameter is; from where the user has put it since, if that is elsewhere."""
        now = knob.read()
        held = self._position.get(knob.name)
        if held is None or held.value != now:
            held = self._position[knob.name] = Position(now, value=now)
        return held

    def _unchanged(self, signal: str, reason: str, knob: Knob) -> Adjusted | None:
        """The event of a hyperparameter that stays, once for each reason."""
        key = f"{signal} {knob.name}"
        if self._unusable.get(key) == reason:
            return None
        self._unusable[key] = reason
        return Adjusted(self._learner.progress.step, knob.name, knob.read(), knob.read(), f"unchanged: {reason}")

    def state(self) -> dict[str, Any]:
        """Plain data from which `restore` goes on; empty where nothing was ever adjusted."""
        if not self._average:
            return {}
        return {
            "averages": dict(self._average),
            "targets": dict(self._target),
            "positions": {name: dataclasses.asdict(at) for name, at in self._position.items()},
            "generator": generator_state(self._rng),
        }

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("averages", "targets", "positions", "generator"))
        for name in ("averages", "targets"):
            for number in held[name].table().values():
                number.number()
        for at in held["positions"].table().values():
            for number in at.fields(("given", "factor", "value")).values():
                number.number()
        check_generator(held["generator"])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed: give hyperparameters the values that they had."""
        self._average, self._target = dict(state["averages"]), dict(state["targets"])
        restore_generator(self._rng, state["generator"])
        known = {knob.name: knob for name in KNOBS for knob in self._known(name)}
        for name, at in state["positions"].items():
            if name in known:
                known[name].write(at["value"])
                self._position[name] = Position(at["given"], at["factor"], known[name].read())

    def _known(self, name: str) -> list[Knob]:
        try:
            return self._knobs(name)
        except ConfigError:  # this agent has none of these
            return []


def _unusable(reason: str) -> float:
    raise UnusableSignal(reason)


def _keys(knob: Knob) -> tuple[str, ...]:
    if not knob.whole:
        return RATE_KEYS
    return (*SCALE_KEYS, "align") if knob.like == "batch_size" else SCALE_KEYS


def _checked(name: str, knob: Knob, given: Any) -> dict[str, Any]:
    """A dict such as lr_params as arguments of `Change`, and `smooth`; ConfigError for what it should not hold."""
    keys = _keys(knob)
    if not isinstance(given, Mapping) or not given.keys() <= set(keys):
        raise ConfigError(f"{name}_params = {given!r}; expected a dict with some of the keys {', '.join(keys)}.")
    held = {key: value for key, value in given.items() if value is not None}
    for key, value in held.items():
        whole = key == "align" and not isinstance(value, int)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value) or whole:
            raise ConfigError(f"{name}_params: {key} = {value!r}; expected a {'whole ' * whole}number.")
        if value <= 0 and key not in ("min", "max"):
            raise ConfigError(f"{name}_params: {key} = {value!r}; expected above 0.")
    if held.get("min", -np.inf) > held.get("max", np.inf):
        raise ConfigError(f"{name}_params: min = {held['min']!r} is above max = {held['max']!r}.")
    renamed = {"min": "low", "max": "high"}
    own = {renamed.get(key, key): value for key, value in held.items()}
    return own if knob.whole else {"rate": 0.1, **own}
