"""Arguments of every public loss that fit its documented shapes, and the same with one of them wrong."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from etude import losses

# Helpers of networks and explorers, which take any number of leading axes; and what is about Python numbers alone.
NOT_LOSSES = {"distributions", "masks", "shapes"}
OF_NUMBERS = {"next_kl_coefficient"}
NUMBERS = {"int": 1, "int | None": 1, "float": 0.9, "bool": True}  # by annotation
SIZES = {"A": 3, "B": 5, "E": 2, "L": 4, "M": 6, "N": 7, "P": 8, "T": 4, "n": 3, "*B": 5, "*E": 2, "*F": 5, "*S": 5}


def public_losses() -> dict[str, Callable[..., Any]]:
    """Every public function of the modules in `etude.losses`, by name."""
    found = {}
    for info in pkgutil.iter_modules(losses.__path__):
        module = importlib.import_module(f"etude.losses.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and info.name not in NOT_LOSSES and name not in OF_NUMBERS:
                found[name] = function
    return found


def fitting_arguments(function: Callable[..., Any], rng: np.random.Generator) -> dict[str, Any]:
    """Arrays of the documented shapes, and Python numbers where only those are allowed."""
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in function.shapes:
            arguments[name] = _array(
                name, [SIZES[axis] if axis in SIZES else int(axis) for axis in _axes(function, name)], rng
            )
        else:
            arguments[name] = NUMBERS.get(parameter.annotation, 0.9)
    return arguments


def wrong_arguments(function: Callable[..., Any], rng: np.random.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """(the argument that is wrong, the arguments): stacked twice where its rank is fixed, longer than the others."""
    for name in function.shapes:
        axes, fitting = _axes(function, name), fitting_arguments(function, rng)
        others = {axis for other in function.shapes if other != name for axis in _axes(function, other)}
        if not any(axis.startswith("*") for axis in axes):
            yield name, {**fitting, name: np.stack([fitting[name]] * 2)}
        for place, axis in enumerate(axes):
            if axis in others:
                yield name, {**fitting, name: np.concatenate([fitting[name]] * 2, place)}


def _axes(function: Callable[..., Any], name: str) -> list[str]:
    return function.shapes[name].removeprefix("?").split()


def _array(name: str, shape: list[int], rng: np.random.Generator) -> Any:
    if name == "action" and len(shape) == 1:
        return np.zeros(shape, np.int64)
    return rng.uniform(0.1, 0.9, shape).astype(np.float32)
