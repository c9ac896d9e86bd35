"""Hyperparameters that change while a run goes on, as data. A schedule is asked for its value at an environment
step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from etude.base.errors import ConfigError

Point = tuple[int, float]  # (environment step, value)


def plain(value: Any) -> Any:
    """A scalar of NumPy as Python's; others as they are."""
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` in a straight line over the first `fraction` of the run, or over its first `steps`, then
    constant at `end`; with further points, from each to the next. Raises ConfigError for `fraction` and `steps`
    together, and for points that are not in order.

    steps: environment steps (gradient steps, on recorded data). then: further points (step, value), each after the one
        before; see `through`.
    """

    start: float
    end: float
    fraction: float = 1.0
    steps: int | None = field(default=None, kw_only=True)
    then: tuple[Point, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, plain(value))
        if not (isinstance(self.fraction, int | float) and self.fraction >= 0):
            raise ConfigError(f"{self}: fraction = {self.fraction!r}; expected a number of at least 0.")
        if self.steps is None:
            if self.then:
                raise ConfigError(f"{self}: `then` holds points after `steps`; give steps, or Linear.through(points).")
            return
        if self.fraction != 1.0:
            raise ConfigError(f"{self}: a schedule lasts a fraction of the run or a number of steps; give one of them.")
        object.__setattr__(self, "then", tuple((plain(step), plain(value)) for step, value in self.then))
        at = [0, self.steps, *(step for step, _ in self.then)]
        if any(type(step) is not int for step in at) or any(one >= two for one, two in pairwise(at)):
            raise ConfigError(f"{self}: steps {at[1:]}; expected whole numbers above 0, each above the one before.")
        if not all(isinstance(value, int | float) and math.isfinite(value) for _, value in self.then):
            raise ConfigError(f"{self}: `then` = {self.then}; expected finite numbers at its points.")

    @staticmethod
    def through(points: Sequence[Point]) -> Linear:
        """A piecewise linear schedule through points (step, value), the first at step 0; constant after the last."""
        if len(points) < 2 or any(len(point) != 2 for point in points) or points[0][0] != 0:
            raise ConfigError(
                f"Linear.through({points!r}): expected two or more points (step, value), the first at step 0, as in "
                "[(0, 1.0), (10_000, 0.1), (50_000, 0.02)]."
            )
        (_, start), (steps, end), *then = points
        return Linear(start, end, steps=steps, then=tuple(then))

    def at(self, step: Any, total: int) -> float:
        """The value at a step of a run of `total` steps."""
        if not isinstance(step, int | float | np.number):  # an array of a compiled program
            points = [(0, self.start), (self.steps or max(1.0, self.fraction * total), self.end), *self.then]
            lines = (((step - a) / (b - a)).clip(0.0, 1.0) * (y - x) for (a, x), (b, y) in pairwise(points))
            return sum(lines, self.start)
        if self.steps is None:
            return self.start + (self.end - self.start) * min(1.0, step / max(1.0, self.fraction * total))
        before, value = 0, self.start
        for after, following in ((self.steps, self.end), *self.then):
            if step < after:
                return value + (following - value) * (step - before) / (after - before)
            before, value = after, following
        return float(value)

    def mean(self, before: int, after: int, total: int) -> float:
        """The mean from one step of a run of `total` steps to a later one."""
        points = [self.steps or max(1.0, self.fraction * total), *(step for step, _ in self.then)]
        ends = [before, *(point for point in points if before < point < after), after]
        areas = ((b - a) * (self.at(a, total) + self.at(b, total)) / 2 for a, b in pairwise(ends))
        return sum(areas) / (after - before)

    @property
    def values(self) -> tuple[float, ...]:
        """The values at its points, between which all others lie."""
        return (self.start, self.end, *(value for _, value in self.then))


@dataclass(frozen=True)
class _ScaledLinear(Linear):
    """The same times `factor`; see `scaled`."""

    factor: float = field(default=1.0, kw_only=True)

    def at(self, step: float, total: int) -> float:
        return _times(super().at(step, total), self.factor)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(_times(value, self.factor) for value in super().values)


def scaled(value: float | Linear, factor: float) -> float | Linear:
    """A number or schedule times `factor`, at most 1 wherever it is at most 1 itself."""
    return _ScaledLinear(**vars(value), factor=factor) if isinstance(value, Linear) else _times(value, factor)


def _times(value: float, factor: float) -> float:
    return min(value * factor, max(value, 1.0))


def at(value: float | Linear, step: int, total: int, over: int = 0) -> float:
    """The value of a number or a schedule at environment step `step` of a run of `total` steps; or its mean over so
    many steps before."""
    if not isinstance(value, Linear):
        return float(value)
    return value.mean(step - over, step, total) if over else value.at(step, total)


def all_at(config: Any, names: Iterable[str], step: int, total: int, over: int = 0) -> dict[str, float]:
    """The values of these fields of a config, such as `gamma` or `optimizer.beta1`, by name; see `at`."""
    given = {name: attrgetter(name)(config) for name in names}
    return {name: value if type(value) is float else at(value, step, total, over) for name, value in given.items()}


def schedule(text: str) -> float | Linear:
    """The number or schedule that a text stands for: `0.001`, `1:0.05` over the whole run, `1:0.05:0.1` over its first
    tenth, `1:0.05@10000` over 10,000 steps, or `0:1,10000:0.1,50000:0.02` through points. Raises ValueError."""
    if "," in text:
        points = [point.split(":") for point in text.split(",")]
        return Linear.through([(int(step), float(value)) for step, value in points])
    line, given, steps = text.partition("@")
    numbers = [float(part) for part in line.split(":")]
    if given:
        start, end = numbers
        return Linear(start, end, steps=int(steps))
    return numbers[0] if len(numbers) == 1 else Linear(*numbers)


def schedule_text(value: float | Linear) -> str:
    """What `schedule` reads as `value`."""
    if not isinstance(value, Linear):
        return f"{value:g}"
    if value.then:
        points = [(0, value.start), (value.steps, value.end), *value.then]
        return ",".join(f"{step}:{number:g}" for step, number in points)
    line = f"{value.start:g}:{value.end:g}"
    if value.steps is not None:
        return f"{line}@{value.steps}"
    return line if value.fraction == 1 else f"{line}:{value.fraction:g}"
