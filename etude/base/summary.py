"""Data as text: arrays as a table of names, shapes, types and ranges; settings as what differs from their defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from etude.base import trees

_HEAD = ("name", "shape", "dtype", "min", "max", "mean")


def table(data: Any) -> str:
    """The arrays in a dataclass of arrays and trees, one a line; NaN does not count in min, max and mean."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for field in fields(data):
        if not field.name.startswith("_"):
            for path, leaf in trees.items(getattr(data, field.name)):
                if isinstance(leaf, np.ndarray):
                    lines.append(_line(f"{field.name}.{path}" if path else field.name, leaf))
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _line(name: str, array: np.ndarray) -> tuple[str, ...]:
    shown = str(array.shape), str(array.dtype)
    numbers = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    if not numbers.size or numbers.dtype.kind not in "biuf":
        return (name, *shown, "", "", "")
    return (name, *shown, *(f"{number:.4g}" for number in (numbers.min(), numbers.max(), numbers.mean())))


def brief(data: Any) -> str:
    """A dataclass as the call that makes it, with those fields alone that differ from their defaults; else its repr."""
    if not is_dataclass(data) or isinstance(data, type):
        return repr(data)
    given = [(field, getattr(data, field.name)) for field in fields(data) if field.init and field.repr]
    default = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f, _ in given}
    changed = [f"{field.name}={brief(value)}" for field, value in given if value != default[field.name]]
    return f"{type(data).__name__}({', '.join(changed)})"
