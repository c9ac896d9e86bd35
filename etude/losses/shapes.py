"""Checks of the shapes that losses are given, so that no two arrays are broadcast by mistake."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from etude.base.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
Lengths = dict[str, Any]  # of axes that were seen: a number, or for "*S" a tuple of them


def shapes(**axes: str) -> Callable[[Function], Function]:
    """Check the shapes of a function's arguments at every call: in a compiled step once, when it is traced.

    axes: argument -> its axes, such as "T B" for [T, B]. An axis has the same length in all arguments; "*S" stands for
        any number of axes, "2" for one of length 2, "" for a scalar. After "?" a scalar is taken as well. Arguments are
        checked in this order, and a spec has at most one "*" that no earlier one has.
    Raises ConfigError with the argument, its shape and the expected one.
    """

    def decorate(function: Function) -> Function:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        expected = [(name, places[name], _Axes.parsed(spec)) for name, spec in axes.items()]

        @functools.lru_cache(maxsize=64)  # engines that do not compile call losses with the same shapes at every step
        def check(*shapes: tuple[Any, ...] | None) -> None:
            lengths: Lengths = {}
            for (name, _, wanted), shape in zip(expected, shapes, strict=True):
                if shape is not None and not wanted.fit(shape, lengths):
                    raise ConfigError(_refusal(function.__name__, name, shape, axes[name], lengths))

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            given = len(args)
            check(*[
                _shape(args[place]) if place < given else _shape(options[name]) if name in options else None
                for name, place, _ in expected
            ])  # fmt: skip
            return function(*args, **options)

        checked.shapes = axes  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


class _Axes:
    """The axes of one argument."""

    def __init__(self, names: Sequence[str], or_scalar: bool):
        self.names, self.or_scalar = tuple(names), or_scalar

    @classmethod
    def parsed(cls, spec: str) -> _Axes:
        return cls(spec.removeprefix("?").split(), spec.startswith("?"))

    def fit(self, shape: tuple[Any, ...], lengths: Lengths) -> bool:
        """Whether a shape has these axes; adds to `lengths` those that are new."""
        if self.or_scalar and not shape:
            return True
        expected: list[Any] = []
        for name in self.names:
            if not name.startswith("*"):
                expected.append(name)
                continue
            if name not in lengths:
                count = len(shape) - sum(len(lengths.get(n, ())) if n[0] == "*" else 1 for n in self.names)
                lengths[name] = shape[len(expected) : len(expected) + max(count, 0)]
            expected += lengths[name]
        return len(expected) == len(shape) and all(
            _agree(name, length, lengths) for name, length in zip(expected, shape, strict=True)
        )


def _agree(axis: Any, length: Any, lengths: Lengths) -> bool:
    """Whether an axis, by name or by length, has this length. Lengths that a graph does not know are None."""
    if isinstance(axis, str):
        known = int(axis) if axis.isdigit() else lengths.get(axis)
        if known is None:
            lengths[axis] = length
        axis = known
    return axis is None or length is None or axis == length


def _shape(value: Any) -> tuple[Any, ...]:
    return () if isinstance(value, int | float) else tuple(value.shape)


def _refusal(function: str, name: str, shape: tuple[Any, ...], spec: str, lengths: Mapping[str, Any]) -> str:
    axes = spec.removeprefix("?").split()
    known = [f"{axis} = {list(lengths[axis]) if axis[0] == '*' else lengths[axis]}" for axis in axes if axis in lengths]
    scalar = " or a number" if spec.startswith("?") else ""
    return (
        f"{function}: {name} has shape {list(shape)}; expected [{', '.join(axes)}]{scalar}"
        f"{' with ' + ', '.join(known) if known else ''}. Index, reshape or reduce it before the loss: losses do not "
        "broadcast."
    )
