"""Which module of `ops` computes with an array: looked up by the array's type and remembered."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from etude.base.errors import ConfigError

_FRAMEWORKS = {
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
