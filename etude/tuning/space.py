"""What a study searches: the values that fields of a config may take."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.base.schedules import Linear
from etude.checkpoint.config_json import from_json, to_json
from etude.networks import Spec
from etude.optimizers import OPTIMIZERS

MOST = 10_000  # points of a grid


@dataclass(frozen=True)
class UniformInterval:
    """Numbers from `low` to `high`, all equally likely. Whole numbers for fields that are declared as such."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self, -math.inf)

    def at(self, share: float) -> float:
        """The number below which this share of draws lies."""
        return self.low + (self.high - self.low) * share

    def share(self, value: float) -> float:
        """The share of draws that lie below a number."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class LogInterval:
    """Positive numbers from `low` to `high` with equally likely logarithms, such as learning rates."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_ends(self, 0.0)

    def at(self, share: float) -> float:
        """The number below which this share of draws lies."""
        return min(max(math.exp(math.log(self.low) + math.log(self.high / self.low) * share), self.low), self.high)

    def share(self, value: float) -> float:
        """The share of draws that lie below a number."""
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Choices:
    """One of some values, all equally likely."""

    values: tuple[Any, ...] | list[Any]  # a tuple once it is made

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(tuple(v) if isinstance(v, list) else v for v in self.values))
        if not self.values:
            raise ConfigError("Choice(): expected at least one value.")


Interval = UniformInterval | LogInterval
Domain = Interval | Choices
KINDS = (UniformInterval, LogInterval, Choices)
KNOWN = (*KINDS, *get_args(Spec), Linear, *OPTIMIZERS.values())  # classes of values that are stored


def _check_ends(domain: Any, least: float) -> None:
    low, high = domain.low, domain.high
    name = "Log" if isinstance(domain, LogInterval) else "Uniform"
    if not all(
        isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in (low, high)
    ):
        raise ConfigError(f"{name}({low!r}, {high!r}): expected two finite numbers.")
    if not least < low < high:
        above = " above 0" if least == 0 else ""
        raise ConfigError(f"{name}({low!r}, {high!r}): expected two numbers{above}, the lower one first.")


class Space:
    """The fields of a config that a study searches, by name: `learning_rate`, or `optimizer.epsilon` of what a field
    holds.

    base: the config that has all other values. given: a list of values (a grid), or a distribution, by field.
    Raises ConfigError for fields that the config does not have, and values that it does not take.
    """

    def __init__(self, base: Any, given: Mapping[str, Any]):
        self.base = base
        self.domains: dict[str, Domain] = {
            name.replace("-", "_"): _domain(name, value) for name, value in given.items()
        }
        self._grid = {name.replace("-", "_") for name, value in given.items() if not isinstance(value, KINDS)}
        self._whole = {name for name in self.domains if field_type(base, name) in (int, int | None)}
        for name, domain in self.domains.items():
            ends = domain.values if isinstance(domain, Choices) else (self.number(name, 0.0), self.number(name, 1.0))
            for value in ends:
                self.config({name: value})

    @property
    def is_grid(self) -> bool:
        """Whether every field has a list of values."""
        return self._grid == set(self.domains)

    @property
    def has_grid(self) -> bool:
        """Whether some field has a list of values."""
        return bool(self._grid)

    def to_json(self) -> dict[str, Any]:
        """What it was given, as plain data from which `space_given` makes it again."""
        return {name: [name in self._grid, to_json(domain)] for name, domain in self.domains.items()}

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of the lists; one that is empty where there are none."""
        lists = {name: domain.values for name, domain in self.domains.items() if name in self._grid}  # type: ignore[union-attr]
        if math.prod(map(len, lists.values())) > MOST:
            raise ConfigError(
                f"The grid has {math.prod(map(len, lists.values())):,} points; expected {MOST:,} at most. Shorten a "
                "list, or draw from it: Choice([...])."
            )
        return [dict(zip(lists, point, strict=True)) for point in itertools.product(*lists.values())]

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """A value of every field that has a distribution."""
        return {name: self.draw_one(name, rng) for name in self.domains if name not in self._grid}

    def draw_one(self, name: str, rng: np.random.Generator) -> Any:
        """A value of one field; of a list, one of its values."""
        domain = self.domains[name]
        if isinstance(domain, Choices):
            return domain.values[int(rng.integers(len(domain.values)))]
        return self.number(name, float(rng.random()))

    def number(self, name: str, share: float) -> float:
        """The number of an interval below which this share of draws lies."""
        domain = self.domains[name]
        assert not isinstance(domain, Choices)
        return self.fitted(name, domain.at(share))

    def fitted(self, name: str, value: float) -> float:
        """A number within the bounds of an interval, whole where the field is."""
        domain = self.domains[name]
        assert not isinstance(domain, Choices)
        value = min(max(value, domain.low), domain.high)
        return round(value) if name in self._whole else float(value)

    def config(self, values: Mapping[str, Any]) -> Any:
        """The base config with these values; ConfigError, with the values, where they cannot be."""
        try:
            return with_values(self.base, values)
        except (ConfigError, TypeError) as error:
            shown = ", ".join(f"{name} = {value!r}" for name, value in values.items())
            raise ConfigError(f"The space holds {shown}: {error}") from error

    def values(self, config: Any) -> dict[str, Any]:
        """The values of the searched fields in a config."""
        return {name: functools.reduce(getattr, name.split("."), config) for name in self.domains}


def space_given(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a space was given that `Space.to_json` described."""
    domains = {name: (grid, from_json(Any, plain, KNOWN)) for name, (grid, plain) in data.items()}
    return {name: list(domain.values) if grid else domain for name, (grid, domain) in domains.items()}


def with_values(config: Any, values: Mapping[str, Any]) -> Any:
    """A config with these values, by field or path of fields."""
    nested: dict[str, dict[str, Any]] = {}
    changes: dict[str, Any] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    for name, inner in nested.items():
        changes[name] = with_values(changes.get(name, getattr(config, name)), inner)
    return dataclasses.replace(config, **changes)


def _domain(name: str, value: Any) -> Domain:
    if isinstance(value, KINDS):
        return value
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(f"{name} = {value!r}; expected at least one value.")
        return Choices(tuple(value))
    raise ConfigError(
        f"{name} = {value!r}; expected a list of values, or one of Uniform(low, high), Log(low, high), Choice([...])."
    )


def field_type(config: Any, path: str) -> Any:
    """What a field is declared as. ConfigError where there is none."""
    *parts, last = path.split(".")
    for i, name in enumerate([*parts, last]):
        held = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
        fields = [field.name for field in held if field.init]
        if name not in fields:
            place = ".".join([type(config).__name__, *parts[:i]]) if i == 0 else type(config).__name__
            raise ConfigError(explain(place, {name}, sorted(fields)))
        if i < len(parts):
            config = getattr(config, name)
    return typing.get_type_hints(type(config)).get(last)
