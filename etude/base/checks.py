"""Checks of configs, one line each, called from `__post_init__`: each raises ConfigError with the field, the value and
what is allowed. Checks of saved state, which each owner of state calls from `check_state`: see `Stored`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from etude.base.errors import CheckpointError, ConfigError
from etude.base.schedules import Linear, plain


def _ends(value: Any) -> tuple[Any, ...]:
    return value.values if isinstance(value, Linear) else (value,)


def _refuse(config: Any, field: str, expected: str) -> None:
    raise ConfigError(f"{type(config).__name__}: {field} = {getattr(config, field)!r}; expected {expected}.")


_DECLARED: dict[str, tuple[tuple[type, ...], str]] = {  # by what a field is declared as
    "float": ((Real,), "a number"),
    "float | None": ((Real, type(None)), "a number or None"),
    "float | Linear": ((Real, Linear), "a number, or Linear(from, to)"),
    "int": ((Integral,), "a whole number"),
    "int | None": ((Integral, type(None)), "a whole number or None"),
    "bool": ((bool,), "True or False"),
    "tuple[int, ...]": ((tuple, list), "a tuple of whole numbers, such as (64,)"),
}


def declared(config: Any, also: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType({})) -> None:
    """Fields that are declared as numbers hold numbers, those declared as tuples of numbers tuples or lists. Numbers of
    NumPy become Python's. also: classes, and what is expected, by further declarations."""
    for field in dataclasses.fields(config):
        object.__setattr__(config, field.name, plain(getattr(config, field.name)))
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        kinds, expected = also.get(kind) or _DECLARED.get(kind, ((), ""))
        value = getattr(config, field.name)
        # True is no number here, though it is one to Python: what is loaded tells them apart.
        fits = isinstance(value, kinds) and value == value and (bool in kinds or not isinstance(value, bool))
        if kinds and not fits:  # NaN, which no comparison reaches, does not fit
            _refuse(config, field.name, expected)


def _each(config: Any, fields: tuple[str, ...], fits: Callable[[Any], bool], expected: str) -> None:
    """Refuse fields whose values do not fit, but for those that are None and may be, as they are declared."""
    for field in fields:
        value = getattr(config, field)
        none = value is None and "None" in str(type(config).__dataclass_fields__[field].type)
        if not none and not fits(value):
            _refuse(config, field, expected)


def fractions(config: Any, *fields: str) -> None:
    """Numbers, or schedules, in [0, 1]."""
    _each(config, fields, lambda value: all(0 <= end <= 1 for end in _ends(value)), "a number from 0 to 1")


def not_negative(config: Any, *fields: str) -> None:
    """Numbers, or schedules, of at least 0."""
    _each(config, fields, lambda value: all(end >= 0 for end in _ends(value)), "a number of at least 0")


def counts(config: Any, *fields: str) -> None:
    """Whole numbers of at least 1."""
    _each(
        config, fields, lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        "a whole number of at least 1",
    )  # fmt: skip


def whole_number(name: str, value: Any, least: int = 1, of: str = "", none: bool = False) -> None:
    """An argument that is a whole number of at least `least`. of: how the message goes on. none: or None."""
    if not (none and value is None or type(plain(value)) is int and value >= least):
        end = ", or None" if none else of
        raise ConfigError(f"{name} = {value!r}; expected a whole number of at least {least}{end}.")


def positive(config: Any, *fields: str) -> None:
    """Numbers, or schedules, above 0."""
    _each(config, fields, lambda value: all(end > 0 for end in _ends(value)), "a number above 0")


def one_of(config: Any, field: str, choices: tuple[str, ...]) -> None:
    """One of some words."""
    if getattr(config, field) not in choices:
        _refuse(config, field, " or ".join(map(repr, choices)))


# -- saved state -------------------------------------------------------------------------------------------------------

LARGEST = 1e18  # of a float32 that is learned with: its square is finite, too
LARGEST_SUM = 1e150  # of a float64, such as a variance of returns or a total of rewards: the same
MOST = 2**40  # of anything that a run counts


class Stored:
    """A value that a checkpoint holds, and its place in there. Every owner of state reads through it what `restore`
    is to take, before anything is restored. Each method raises CheckpointError, with the place, what is there and what
    is expected; those that read one value return it."""

    def __init__(self, value: Any, place: str):
        self.value: Any = value
        self.place: str = place

    def refuse(self, expected: str, found: str | None = None) -> NoReturn:
        """Raise CheckpointError."""
        raise CheckpointError(
            f"The checkpoint holds {found or _shown(self.value)} at {self.place or 'its root'}; expected {expected}. "
            "It was changed, or is of a run that was built otherwise."
        )

    def fields(self, names: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Stored]:
        """The values of a dict with these keys, some of which may be missing."""
        names, optional = tuple(names), tuple(optional)
        held = self.table()
        for name in names:
            if name not in held:
                self.refuse(f"{name!r} in it", f"a table without {name!r}")
        for name in held:
            if name not in names and name not in optional:
                self.refuse(f"nothing but {', '.join((*names, *optional)) or 'an empty table'}", f"{name!r}")
        return held

    def table(self) -> dict[str, Stored]:
        """The values of a dict with any keys."""
        if not isinstance(self.value, dict):
            self.refuse("a table")
        return {name: Stored(part, f"{self.place}/{name}".lstrip("/")) for name, part in self.value.items()}

    def items(self, count: int | None = None) -> list[Stored]:
        """The values of a list, or so many of them."""
        if not isinstance(self.value, list | tuple) or count not in (None, len(self.value)):
            self.refuse("a list" if count is None else f"a list of {count}")
        return [Stored(part, f"{self.place}/{i}") for i, part in enumerate(self.value)]

    def whole(self, low: int = 0, high: int = MOST) -> int:
        """A whole number."""
        number = self._single("iu", int)
        if number is None or not low <= number <= high:
            self.refuse(f"a whole number from {low} to {high}")
        return int(number)

    def number(self, low: float = -LARGEST_SUM, high: float = LARGEST_SUM, nan: bool = False) -> float:
        """A number; not NaN, unless `nan` says so."""
        number = self._single("iuf", int | float)
        if number is None or not (low <= number <= high or nan and math.isnan(number)):
            self.refuse(f"a number from {low:g} to {high:g}")
        return float(number)

    def flag(self) -> bool:
        """True or False."""
        found = self._single("b", bool)
        if found is None:
            self.refuse("true or false")
        return bool(found)

    def text(self) -> str:
        """Text."""
        if not isinstance(self.value, str):
            self.refuse("text")
        return self.value

    def array(
        self,
        dtype: Any,
        shape: tuple[int | None, ...],
        low: Any = None,
        high: Any = None,
        *,
        nan: bool = False,
        any_width: bool = False,
    ) -> np.ndarray:
        """An array of this dtype and shape, whose numbers are from `low` to `high`.

        shape: None for an axis of any length. low, high: None for what the dtype holds, and for floats LARGEST either
        way, or LARGEST_SUM. nan: whether NaN may be among them. any_width: take dtypes of the same kind, as float64 for
        float32.
        """
        array, dtype = np.asarray(self.value), np.dtype(dtype)
        fits = array.dtype.kind == dtype.kind if any_width else array.dtype == dtype
        right = len(shape) == array.ndim and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        if not isinstance(self.value, np.ndarray | np.generic) or not fits or not right:
            lengths = ", ".join("any" if n is None else str(n) for n in shape)
            self.refuse(f"an array of {dtype} of shape ({lengths})")
        if dtype.kind in "iu" and (array.dtype != dtype or low is not None or high is not None):
            low, high = np.iinfo(dtype).min if low is None else low, np.iinfo(dtype).max if high is None else high
        elif dtype.kind == "f":
            most = LARGEST_SUM if dtype.itemsize > 4 else LARGEST
            low, high = -most if low is None else low, most if high is None else high
        if low is not None:
            self._inside(array[~np.isnan(array)] if nan else array, low, high)
        return array

    def like(self, own: Any) -> None:
        """The same names, kinds and shapes as in `own`, which is what the run itself would save: arrays and tables of
        arrays, numbers, flags and text. What a run counts is 0 or more."""
        if isinstance(own, np.ndarray | np.generic):
            self.array(own.dtype, np.shape(own), any_width=True)
        elif isinstance(own, dict):
            held = self.fields(own)
            for name, part in own.items():
                held[name].like(part)
        elif isinstance(own, list | tuple):
            for saved, part in zip(self.items(len(own)), own, strict=True):
                saved.like(part)
        elif own is None:
            if self.value is not None:
                self.refuse("nothing")
        else:
            read: dict[type, Callable[[], Any]] = {bool: self.flag, int: self.whole, float: self.number, str: self.text}
            read[type(own)]()

    def _single(self, kinds: str, types: Any) -> Any:
        """One number of these kinds, as Python's or as NumPy's; None where it is something else."""
        value = self.value
        if isinstance(value, np.ndarray | np.generic):
            return value.item() if value.ndim == 0 and value.dtype.kind in kinds else None
        return value if isinstance(value, types) and isinstance(value, bool) == (types is bool) else None

    def _inside(self, array: np.ndarray, low: Any, high: Any) -> None:
        if not array.size:
            return
        least, most = array.min().item(), array.max().item()  # NaN, where there is one
        if np.ndim(low) or np.ndim(high):
            right = bool((array >= low).all() and (array <= high).all())
        else:
            right = low <= least and most <= high
        if not right:
            self.refuse(f"numbers from {np.min(low)} to {np.max(high)}", f"numbers from {least} to {most}")


class Stateless:
    """The base of what has nothing to save."""

    def state(self) -> dict[str, Any]:
        return {}

    def check_state(self, saved: Stored) -> None:
        saved.fields(())

    def restore(self, state: dict[str, Any]) -> None: ...


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
