"""`ops` that record: the steps from traced inputs to an output, from which other programs are made that compute the
same. Each step is also computed in NumPy, on examples, so that shapes and dtypes are known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.ops import numpy_ops

PRECEDENCE = 3


class Traced:
    """An array [N, ...] of an example, and where it comes from.

    operation: the function of `ops`, or the operator, that computed it of the arguments, which are arrays, numbers and
        what says how; "" for inputs and for constants.
    name: of an input or a parameter. varies: whether it depends on an input. Steps that do not are no steps of the
        program: what they give is a constant.
    """

    __array_ufunc__ = None  # NumPy's arrays leave operators to it
    __iter__ = None
    __hash__ = object.__hash__

    def __init__(
        self, value: Any, name: str = "", varies: bool = False, operation: str = "", arguments: tuple[Any, ...] = ()
    ):
        self.value: np.ndarray = np.asarray(value)
        self.name, self.varies, self.operation, self.arguments = name, varies, operation, arguments

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the example: the first axis may have any length."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype

    def reshape(self, *shape: int) -> Traced:
        """As of NumPy's arrays."""
        return reshape(self, shape)

    def __bool__(self) -> bool:
        raise ConfigError(
            "This agent's act decides by the values of an array which steps it computes; only those that compute the "
            "same steps for every observation can be exported. Use ops.where."
        )

    def __getitem__(self, key: Any) -> Traced:
        return record("getitem", operator.getitem, self, key)


def _operator(name: str, function: Callable[..., Any], swapped: bool = False) -> Callable[..., Traced]:
    return lambda *x: record(name, function, *(reversed(x) if swapped else x))


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "lt", "le", "gt", "ge", "eq", "ne", "neg",
    "invert",
):  # fmt: skip
    _function = getattr(operator, f"__{_name}__")
    setattr(Traced, f"__{_name}__", _operator(_name, _function))
    setattr(Traced, f"__r{_name}__", _operator(_name, _function, True))


def record(operation: str, function: Callable[..., Any], *arguments: Any) -> Traced:
    """What the function makes of these arguments, as a step of the program."""
    if any(callable(argument) for argument in arguments):
        raise ConfigError(f"This agent's act uses ops.{operation}, of which no program can be made for export.")
    kept = mapped(lambda x: Traced(x) if isinstance(x, np.ndarray | np.generic) else x, arguments)
    value = function(*mapped(lambda x: x.value if isinstance(x, Traced) else x, kept))
    varies = any(isinstance(x, Traced) and x.varies for x in flat(kept))
    return Traced(value, "", varies, operation, kept) if varies else Traced(value)


def mapped(function: Callable[[Any], Any], argument: Any) -> Any:
    """A function of everything in tuples, lists and slices."""
    if isinstance(argument, tuple | list):
        return tuple(mapped(function, part) for part in argument)
    return function(argument)


def flat(argument: Any) -> Iterator[Any]:
    """What is in tuples, one by one."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from flat(part)
    else:
        yield argument


def steps(outputs: Iterable[Traced]) -> list[Traced]:
    """What the program computes for these outputs, inputs and constants included, each after what it is computed of."""
    found: dict[Traced, None] = {}
    waiting = [(output, False) for output in reversed(list(outputs))]
    while waiting:  # no recursion: a program may have thousands of steps
        step, ready = waiting.pop()
        if ready:
            found[step] = None
        elif step not in found:
            waiting.append((step, True))
            waiting += [(part, False) for part in flat(step.arguments) if isinstance(part, Traced)]
    return list(found)


def stop_gradient(x: Traced) -> Traced:
    return x


def linspace(low: float, high: float, n: int, like: Any) -> Traced:
    return Traced(numpy_ops.linspace(low, high, n, like))


def split_last(x: Traced, sizes: Sequence[int]) -> list[Traced]:
    ends = np.cumsum(sizes).tolist()
    return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]


def cast(x: Traced, dtype: str) -> Traced:
    return x if x.dtype.name == dtype else record("cast", numpy_ops.cast, x, dtype)


def reshape(x: Traced, shape: tuple[int, ...]) -> Traced:
    return record("reshape", numpy_ops.reshape, x, shape)


def __getattr__(name: str) -> Callable[..., Traced]:
    """The functions of `ops` that are recorded as they are."""
    function = getattr(numpy_ops, name)
    return lambda *arguments: record(name, function, *arguments)
