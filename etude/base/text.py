"""Data as text: arrays as a table of names, shapes, types and ranges; settings as what differs from their defaults. And
text for terminals, whatever they can show and for as long as they are there."""

from __future__ import annotations

import errno
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from etude.base import trees

_GONE = (errno.EIO, errno.EPIPE, errno.ENXIO)
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


class Lasting:
    """A text stream that drops what nobody can read (any more), instead of raising; None: that of a program without
    one."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop; the number of characters."""
        try:
            return len(text) if self._stream is None else self._stream.write(text)
        except UnicodeEncodeError as error:  # of a terminal, or a pipe, that knows few characters
            known = text.replace("±", "+-").encode(error.encoding, "replace").decode(error.encoding)
            return self._stream.write(known)
        except OSError as error:
            return _dropped(error, len(text))

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            _dropped(error, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def printable(text: str, most: int | None = None) -> str:
    """A text, or its first characters, without any that would control a terminal: those as Python writes them."""
    shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text[:most])
    return shown if most is None or len(text) <= most else f"{shown}... ({len(text):,} characters)"


def _dropped(error: OSError, size: int) -> int:
    if error.errno not in _GONE:
        raise error
    return size
