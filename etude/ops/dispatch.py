"""Which module of `ops` computes with an array: looked up by the array's type and remembered; and what
losses know of the replicas that divide a batch: how a number is averaged over them. On JAX nothing is: arrays are those
of all replicas."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from etude.base.errors import ConfigError

_FRAMEWORKS = {
    "numpy": "numpy_ops",  # a generator
    "torch": "torch_ops",
    "keras": "keras_ops",
    "tensorflow": "keras_ops",
    "jax": "jax_ops",
    "jaxlib": "jax_ops",
    "etude": "tracing",
}


def _module_name(kind: type) -> str:
    if issubclass(kind, np.ndarray | np.generic | list | tuple):
        return "numpy_ops"
    if issubclass(kind, float | int):
        return "scalar_ops"
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in _FRAMEWORKS:
            return _FRAMEWORKS[package]
    raise ConfigError(
        f"etude.ops was given a {kind.__module__}.{kind.__qualname__}; expected an array of NumPy, torch, TensorFlow "
        "or JAX, or a Python number. Convert it with numpy.asarray."
    )


class _Implementations(dict[type, Any]):
    def __missing__(self, kind: type) -> Any:
        module = self[kind] = importlib.import_module(f"etude.ops.{_module_name(kind)}")
        return module


IMPLEMENTATIONS = _Implementations()


def among(*values: Any) -> Any:
    """The module that computes with all of these: a framework's where one value is an array of it, then NumPy's."""
    found = IMPLEMENTATIONS[type(values[0])]
    for value in values[1:]:
        other = IMPLEMENTATIONS[type(value)]
        if other is not found and other.PRECEDENCE > found.PRECEDENCE:
            found = other
    return found


_mean: ContextVar[Callable[[Any], Any] | None] = ContextVar("replica_mean", default=None)
_count: ContextVar[int] = ContextVar("replica_count", default=1)


@contextmanager
def averaged_by(mean: Callable[[Any], Any], count: int) -> Iterator[None]:
    """Losses in this context are those of a part of the batch. mean: of a tensor over all replicas. count: of these."""
    tokens = _mean.set(mean), _count.set(count)
    try:
        yield
    finally:
        _mean.reset(tokens[0])
        _count.reset(tokens[1])


def mean_over_replicas() -> Callable[[Any], Any] | None:
    """The mean of a tensor over all replicas; None where one computes the loss of the whole batch."""
    return _mean.get()


def replica_count() -> int:
    """How many replicas compute the losses of equal parts of the batch; 1 where one computes that of the whole."""
    return _count.get()
