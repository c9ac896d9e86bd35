"""Changes of one value at a random place of a run's state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

OTHERS = (None, "text", [], {}, True, -1, -2.5, 1e30, 2**70, -(2**40), float("nan"), float("inf"), float("-inf"))


def change(state: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """A copy of a state with one value changed, and what was done where. Every component is as likely as any other."""
    changed = copy.deepcopy(state)
    component = str(rng.choice([name for name, part in changed.items() if part is not None]))
    places = list(_places(changed[component], (component,)))
    place = places[rng.integers(len(places))]
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    what = _change_at(holder, place[-1], rng)
    return changed, f"{'/'.join(map(str, place))}: {what}"


def _places(value: Any, place: tuple) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, part in inner for found in _places(part, (*place, key)))]


def _change_at(holder: Any, key: Any, rng: np.random.Generator) -> str:
    value = holder[key]
    kinds = ["other"] * 2
    if isinstance(holder, dict) and len(holder) > 1:
        kinds += ["missing", "renamed"]
    if isinstance(value, np.ndarray):
        kinds += ["element"] * 4 + ["shape", "dtype"] * 2
    if isinstance(value, dict):
        kinds += ["extra"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        kinds += ["number"] * 3
    kind = str(rng.choice(kinds))
    if kind in ("missing", "renamed"):
        moved = holder.pop(key)
        if kind == "renamed":
            holder[f"{key}x"] = moved
        return kind
    if kind == "extra":
        value["more"] = 1
        return kind
    make = {"other": _other, "element": _element, "shape": _shape, "dtype": _dtype, "number": _number}[kind]
    holder[key], what = make(value, rng)
    return f"{kind} {what}"


def _other(value: Any, rng: np.random.Generator) -> tuple[Any, str]:
    other = OTHERS[rng.integers(len(OTHERS))]
    return copy.copy(other), repr(other)


def _element(array: np.ndarray, rng: np.random.Generator) -> tuple[Any, str]:
    if not array.size:
        return np.zeros((1, *array.shape[1:]), array.dtype), "added"
    choices: tuple = (-1.0, np.nan, np.inf, -np.inf, 1e30, 3e38)
    if array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        choices = (info.min, info.max, info.max // 2, 1, 2)
    elif array.dtype.kind == "b":
        choices = (True, False)
    number = choices[rng.integers(len(choices))]
    array = array.copy()
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        flat[rng.integers(array.size)] = number
    return flat.reshape(array.shape), str(number)


def _shape(array: np.ndarray, rng: np.random.Generator) -> tuple[Any, str]:
    shapes = {
        "one axis more": array[None],
        "flat": array.reshape(-1),
        "transposed": array.T.copy(),
        "empty": array.reshape(-1)[:0],
        "shorter": array[:-1] if array.ndim else array[None],
        "longer": np.concatenate([array, array[-1:]]) if array.ndim and len(array) else np.zeros((2, 2), array.dtype),
    }
    name = str(rng.choice(list(shapes)))
    return shapes[name], name


def _dtype(array: np.ndarray, rng: np.random.Generator) -> tuple[Any, str]:
    dtypes = [np.dtype(name) for name in ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?")]
    dtype = dtypes[rng.integers(len(dtypes))]
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(dtype), str(dtype)


def _number(value: float, rng: np.random.Generator) -> tuple[Any, str]:
    other_types = (float(value), round(min(max(value, -1e9), 1e9)), str(value), [value])
    choices = (-value, value + 1, value * 2, value + 0.5, 10**9, *other_types)
    other = choices[rng.integers(len(choices))]
    return other, repr(other)
