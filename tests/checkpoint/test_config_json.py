"""Configs as JSON: what comes back is equal, and what may come back is said by the declared types alone."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.checkpoint.config_json import from_json, to_json
from etude.networks.specs import Conv, Mlp, Spec
from etude.optimizers import Adam, Lion, Optimizer, RMSProp


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Base:
    """What an extension derives from."""


@dataclass(frozen=True)
class Extension(Base):
    size: int = 1


@dataclass(frozen=True)
class Stranger:
    size: int = 1


@dataclass(frozen=True)
class Config:
    network: Spec = Mlp()
    rate: float | Linear = 1e-3
    clip: float | None = None
    target: Literal["auto"] | float = "auto"
    count: int = 3
    either: float | int = 1
    level: Literal[1, 2] = 1
    double: bool = True
    name: str = "x"
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")
    grid: tuple[tuple[float, ...], ...] = ()
    many: list[int] = field(default_factory=list)
    table: dict[str, float | Linear] = field(default_factory=dict)
    optimizer: Optimizer = Adam()
    extension: Base | None = None
    anything: Any = None


def round_trip(config: Any, kind: Any = Config, known: tuple[type, ...] = ()) -> Any:
    return from_json(kind, json.loads(json.dumps(to_json(config), allow_nan=False)), known)


FLOATS = st.floats(allow_nan=False)
DECAYS = st.floats(0, 1, exclude_max=True)
LINEAR = st.builds(Linear, FLOATS, FLOATS, st.floats(min_value=0))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text() | LINEAR | st.sampled_from(Colour),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.builds(
    Config,
    network=st.sampled_from([Mlp((3, 4), "tanh"), Conv(widths=())]),
    rate=FLOATS | LINEAR,
    clip=st.none() | FLOATS,
    target=st.just("auto") | FLOATS,
    count=st.integers(),
    either=st.integers() | FLOATS,
    level=st.sampled_from([1, 2]),
    double=st.booleans(),
    name=st.text(),
    colour=st.sampled_from(Colour),
    pair=st.tuples(st.integers(), st.text()),
    grid=st.lists(st.lists(FLOATS, max_size=3).map(tuple), max_size=3).map(tuple),
    many=st.lists(st.integers()),
    table=st.dictionaries(st.text(max_size=4), FLOATS | LINEAR, max_size=3),
    optimizer=st.builds(Adam, DECAYS, DECAYS, st.floats(1e-300))
    | st.builds(RMSProp, DECAYS, st.floats(1e-300), st.booleans())
    | st.builds(Lion, DECAYS, DECAYS),
    extension=st.none() | st.builds(Extension, st.integers()),
    anything=ANYTHING,
)


@given(config=CONFIGS)
def test_any_config_comes_back_equal_and_of_equal_types(config: Config) -> None:
    again = round_trip(config, known=(Linear, Colour, Extension))
    assert again == config
    assert repr(again) == repr(config)


def test_infinite_and_missing_numbers_are_strict_json() -> None:
    assert to_json(Linear(math.inf, -math.inf))["start"] == {"float": "inf"}
    assert round_trip(Linear(math.inf, -math.inf), Linear) == Linear(math.inf, -math.inf)
    assert math.isnan(round_trip(Linear(math.nan, 0.0), Linear).start)


def test_the_form_is_fixed() -> None:
    assert to_json(Extension(2)) == {"class": "Extension", "size": 2}
    assert to_json(Colour.RED) == {"class": "Colour", "member": "RED"}
    plain = {"class": "Mlp", "widths": [3], "activation": "relu", "initializer": "fan_in"}
    plain |= {"dueling": False, "noisy": 0.0, "layer_norm": False, "norm_groups": [], "skips": []}
    plain |= {"dropout": 0.0, "batch_renorm": False, "spectral_norm": False, "bias": True}
    assert to_json(Mlp((3,))) == plain


def test_a_missing_field_takes_its_default_and_a_whole_number_becomes_a_float() -> None:
    config = from_json(Config, {"class": "Config", "rate": 1, "clip": 2})
    assert (config, type(config.rate), type(config.clip)) == (Config(rate=1.0, clip=2.0), float, float)


def test_a_union_is_read_as_the_class_that_the_data_names() -> None:
    assert from_json(Mlp | Conv, {"class": "Conv", "widths": []}) == Conv(widths=())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"class": "Config", "cuont": 1}, "Config has an unknown field 'cuont'; did you mean count?"),
        ({"class": "Config", "zzz": 1}, "unknown field 'zzz'; expected network, rate"),
        ({"class": "Config", "rate": {"class": "Linear", "start": 1.0}}, "Config.rate lacks end, which Linear needs"),
        ({"class": "Config", "rate": "fast"}, "Config.rate: got 'fast'; expected float or Linear"),
        ({"class": "Config", "rate": True}, "Config.rate: got True; expected float or Linear"),
        ({"class": "Config", "count": 1.5}, "Config.count: got 1.5; expected int"),
        ({"class": "Config", "count": True}, "Config.count: got True; expected int"),
        ({"class": "Config", "double": 1}, "Config.double: got 1; expected bool"),
        ({"class": "Config", "target": "automatic"}, "Config.target: got 'automatic'; expected 'auto' or float"),
        ({"class": "Config", "level": True}, "Config.level: got True; expected 1, 2"),
        ({"class": "Config", "table": {"class": "Linear", "start": 1}}, "Config.table: got a Linear; expected dict"),
        ({"class": "Config", "colour": {"class": "Colour", "member": "GREEN"}}, "Config.colour: got a Colour"),
        ({"class": "Config", "colour": "RED"}, "Config.colour: got 'RED'; expected Colour"),
        ({"class": "Config", "pair": [1]}, "Config.pair: got [1]; expected tuple[int, str]"),
        ({"class": "Config", "pair": [1, 2]}, "Config.pair[1]: got 2; expected str"),
        ({"class": "Config", "grid": [[1.0, "a"]]}, "Config.grid[0][1]: got 'a'; expected float"),
        ({"class": "Config", "network": None}, "Config.network: got None; expected Mlp or Conv"),
        ({"class": "Config", "network": {"class": "Linear"}}, "Config.network: got a Linear; expected Mlp or Conv"),
        ({"class": "Config", "network": {"class": []}}, "Config.network: got a []; expected Mlp or Conv"),
        ({"class": "Config", "network": {"class": "os.system"}}, "Config.network: got a os.system"),
        ({"class": "Config", "anything": {"class": "Popen", "args": "ls"}}, "Config.anything: got a Popen"),
        ({"class": "Config", "clip": {"float": "1"}}, "Config.clip: got {'float': '1'}; expected float or null"),
        ({"class": "Other"}, "Config: got a Other; expected Config"),
        ({}, "Config: got {}; expected Config"),
        ([], "Config: got []; expected Config"),
        (None, "Config: got None; expected Config"),
    ],
)
def test_data_that_does_not_fit_is_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_json(Config, data)
    assert message in str(error.value)


def test_errors_of_the_class_itself_come_through() -> None:
    with pytest.raises(ConfigError, match="unknown activation 'sine'"):
        from_json(Config, {"class": "Config", "network": {"class": "Mlp", "activation": "sine"}})


def test_only_known_classes_that_fit_the_declared_type_come_back() -> None:
    data = {"class": "Config", "extension": {"class": "Extension", "size": 2}}
    assert from_json(Config, data, [Extension]).extension == Extension(2)
    with pytest.raises(ConfigError, match="got a Extension"):
        from_json(Config, data)
    with pytest.raises(ConfigError, match="got a Stranger"):
        from_json(Config, {"class": "Config", "extension": {"class": "Stranger"}}, [Stranger])
    assert from_json(Config, {"class": "Config", "anything": {"class": "Stranger"}}, [Stranger]).anything == Stranger()


@dataclass(frozen=True)
class WithFunction:
    make: Callable | type | list | dict


@pytest.mark.parametrize("value", [len, Mlp, [b"x"], {1: 2}, {"class": "x"}])
def test_what_cannot_be_stored_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"WithFunction\.make.* cannot be stored: got .*; expected numbers"):
        to_json(WithFunction(value))
