"""Checks of configs, one line each, called from `__post_init__`. Each raises ConfigError with the field, the value and
what is allowed."""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import Any

from etude.errors import ConfigError
from etude.schedules import Linear


def _ends(value: Any) -> tuple:
    return (value.start, value.end) if isinstance(value, Linear) else (value,)


def _refuse(config: Any, field: str, expected: str) -> None:
    raise ConfigError(f"{type(config).__name__}: {field} = {getattr(config, field)!r}; expected {expected}.")


_DECLARED: dict[str, tuple[tuple[type, ...], str]] = {  # by what a field is declared as
    "float": ((Real,), "a number"),
    "float | None": ((Real, type(None)), "a number or None"),
    "float | Linear": ((Real, Linear), "a number, or Linear(from, to)"),
    "int": ((Integral,), "a whole number"),
    "int | None": ((Integral, type(None)), "a whole number or None"),
    "bool": ((bool,), "True or False"),
}


def declared(config: Any) -> None:
    """Fields that are declared as numbers hold numbers."""
    for field in dataclasses.fields(config):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        kinds, expected = _DECLARED.get(kind, ((), ""))
        if kinds and not isinstance(getattr(config, field.name), kinds):
            _refuse(config, field.name, expected)


def fractions(config: Any, *fields: str) -> None:
    """Numbers, or schedules, in [0, 1]."""
    for field in fields:
        if not all(0 <= end <= 1 for end in _ends(getattr(config, field))):
            _refuse(config, field, "a number from 0 to 1")


def not_negative(config: Any, *fields: str) -> None:
    """Numbers, or schedules, of at least 0."""
    for field in fields:
        if not all(end >= 0 for end in _ends(getattr(config, field))):
            _refuse(config, field, "a number of at least 0")


def counts(config: Any, *fields: str) -> None:
    """Whole numbers of at least 1."""
    for field in fields:
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            _refuse(config, field, "a whole number of at least 1")


def positive(config: Any, *fields: str) -> None:
    """Numbers, or schedules, above 0."""
    for field in fields:
        if not all(end > 0 for end in _ends(getattr(config, field))):
            _refuse(config, field, "a number above 0")


def one_of(config: Any, field: str, choices: tuple[str, ...]) -> None:
    """One of some words."""
    if getattr(config, field) not in choices:
        _refuse(config, field, " or ".join(map(repr, choices)))
