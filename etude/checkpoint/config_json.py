"""Frozen dataclasses as JSON and back: configs, specs and schedules, nested to any depth.

A dataclass becomes `{"class": "Mlp", "widths": [64, 64], ...}`, an enum member `{"class": "Colour", "member": "RED"}`,
an infinite number `{"float": "inf"}`, and tuples become lists. Which classes may come back is said by the types of the
fields and by the caller, never by the data.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import math
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, Union

from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.base.schedules import plain


class _Misfit(Exception):
    """A value does not fit a type."""


def to_json(value: Any) -> Any:
    """A config as plain data. ConfigError names the field that cannot be stored."""
    return _plain(value, type(value).__name__)


def _plain(value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return {"class": type(value).__name__} | {
            name: _plain(getattr(value, name), f"{place}.{name}") for name in fields
        }
    if isinstance(value, enum.Enum):
        return {"class": type(value).__name__, "member": value.name}
    value = plain(value)
    if type(value) is float and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return [_plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if type(value) is dict and all(type(key) is str for key in value) and not {"class", "float"} & set(value):
        return {key: _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    raise ConfigError(
        f"{place} cannot be stored: got {value!r} ({type(value).__name__}); expected numbers, strings, booleans, None, "
        "enums and frozen dataclasses, in tuples, lists and dicts with strings as keys."
    )


def from_json(kind: Any, data: Any, known: Iterable[type] = ()) -> Any:
    """The value of type `kind` that `to_json` described.

    known: further classes that data may name where a field is declared as `Any`, or as a class that they derive from.

    A field that is missing takes its default: it is newer than the data. ConfigError names a field that is unknown, one
    that is missing and has no default, and a value that does not fit the declared type.
    """
    return _Reader({each.__name__: each for each in known}).read(kind, data, getattr(kind, "__name__", "config"))


def from_saved(kind: Any, saved: Stored, known: Iterable[type] = ()) -> Any:
    """`from_json` of what a checkpoint holds: CheckpointError, with its place, where it does not fit."""
    try:
        return from_json(kind, saved.value, known)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"The checkpoint's {saved.place} cannot be used: {error} It was changed.") from error


class _Reader:
    def __init__(self, known: dict[str, type]):
        self.known = known

    def read(self, kind: Any, data: Any, place: str) -> Any:
        try:
            return self.value(kind, data, place)
        except _Misfit:
            shown = f"a {data['class']}" if isinstance(data, dict) and "class" in data else repr(data)
            raise ConfigError(f"{place}: got {shown}; expected {_described(kind)}.") from None

    def value(self, kind: Any, data: Any, place: str) -> Any:
        """Raises _Misfit where the data is not of this kind at all, ConfigError where it is and has a fault inside."""
        origin = typing.get_origin(kind)
        if origin in (Union, types.UnionType):
            return self.one_of(typing.get_args(kind), data, place)
        if origin is Literal:
            return _one(
                data, [choice for choice in typing.get_args(kind) if choice == data and type(choice) is type(data)]
            )
        if origin in (tuple, list, dict) or kind in (tuple, list, dict):
            return self.collection(origin or kind, typing.get_args(kind), data, place)
        if isinstance(data, dict) and "class" in data:
            return self.instance(kind, data, place)
        if kind is Any:
            return self.untyped(data, place)
        if kind is float:
            return _float(data)
        if kind in (bool, int, str, types.NoneType, None):
            return _one(data, [data] if type(data) is (types.NoneType if kind is None else kind) else [])
        raise _Misfit

    def one_of(self, kinds: tuple[Any, ...], data: Any, place: str) -> Any:
        if float in kinds and int in kinds and type(data) is int:  # a whole number stays one where that is allowed
            return data
        for kind in kinds:
            try:
                return self.value(kind, data, place)
            except _Misfit:
                continue
        raise _Misfit

    def collection(self, origin: type, kinds: tuple[Any, ...], data: Any, place: str) -> Any:
        if origin is dict:
            if not isinstance(data, dict) or "class" in data or "float" in data:
                raise _Misfit
            return {key: self.read(kinds[1] if kinds else Any, item, f"{place}[{key!r}]") for key, item in data.items()}
        if not isinstance(data, list):
            raise _Misfit
        if origin is list or len(kinds) == 2 and kinds[1] is Ellipsis:
            kinds = kinds[:1] * len(data)
        if kinds and len(kinds) != len(data):
            raise _Misfit
        return origin(
            self.read(kind, x, f"{place}[{i}]")
            for i, (kind, x) in enumerate(zip(kinds or [Any] * len(data), data, strict=True))
        )

    def untyped(self, data: Any, place: str) -> Any:
        if isinstance(data, list):
            return self.value(tuple, data, place)
        if isinstance(data, dict):
            return _float(data) if set(data) == {"float"} else self.value(dict, data, place)
        return data

    def instance(self, kind: Any, data: dict[str, Any], place: str) -> Any:
        name = str(data["class"])
        candidate = kind if isinstance(kind, type) and kind.__name__ == name else self.known.get(name)
        if candidate is None or kind is not Any and not (isinstance(kind, type) and issubclass(candidate, kind)):
            raise _Misfit
        if issubclass(candidate, enum.Enum):
            return _one(data, [member for member in candidate if member.name == data.get("member")])
        if not dataclasses.is_dataclass(candidate):
            raise _Misfit
        return self.dataclass(candidate, {key: item for key, item in data.items() if key != "class"}, place)

    def dataclass(self, kind: Any, data: dict[str, Any], place: str) -> Any:
        fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
        for name in data:
            if name not in fields:
                close = difflib.get_close_matches(name, fields, 1)
                hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(fields)}."
                raise ConfigError(f"{place} has an unknown field {name!r}; {hint}")
        absent = [(name, field) for name, field in fields.items() if name not in data]
        required = (name for name, field in absent if field.default is field.default_factory is dataclasses.MISSING)
        if missing := ", ".join(required):
            raise ConfigError(f"{place} lacks {missing}, which {kind.__name__} needs.")
        hints = _hints(kind)
        return kind(**{name: self.read(hints[name], item, f"{place}.{name}") for name, item in data.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError as error:
        raise ConfigError(f"{kind.__name__} declares a field with a type that is not imported: {error}.") from error


def _one(data: Any, matches: list[Any]) -> Any:
    if not matches:
        raise _Misfit
    return matches[0]


def _float(data: Any) -> float:
    if isinstance(data, dict) and set(data) == {"float"} and data["float"] in ("inf", "-inf", "nan"):
        return float(data["float"])
    if type(data) not in (int, float):
        raise _Misfit
    return float(data)


def _described(kind: Any) -> str:
    if typing.get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_described(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is Literal:
        return ", ".join(repr(choice) for choice in typing.get_args(kind))
    if kind is types.NoneType:
        return "null"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
