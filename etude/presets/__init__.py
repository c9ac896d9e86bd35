"""Hyperparameters by algorithm and environment, data with their sources: one TOML file for each algorithm, here and in
the folder that ETUDE_PRESETS names.

A file holds a table for each environment: `steps` of a whole run, over which schedules are stretched, `environments`
that are stepped in parallel, and fields of the config as `--config` reads them. Fields above the first table hold for
all of them. `base = "dqn/CartPole-v1"` takes what another preset holds, but for what the algorithm has no field for.
The comment above a table is its source: where the figures are from, and every difference from there.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from etude.algorithms import ALGORITHMS
from etude.base.checks import whole_number
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.checkpoint.config_json import from_json, to_json
from etude.checkpoint.old_names import present_config
from etude.checkpoint.plain import read_object

HERE = Path(__file__).parent
USERS = "ETUDE_PRESETS"
"""The environment variable that names a folder of the user's own presets, which take precedence."""

ATARI = "ALE/*"
"""Stands for every game of the Arcade Learning Environment among the ids that presets are for."""

POINT = "etude.examples.point:PointWorld"
"""The goal environment of the examples."""

WITHOUT_VELOCITIES = "etude.examples.cart_pole:WithoutVelocities"
"""The task of the examples that needs a memory."""

PRESETS: dict[str, dict[str, Preset]]
"""Every preset, by algorithm and environment."""

REDQ: dict[str, Any]
DROQ: dict[str, Any]
RLPD: dict[str, Any]
SIMBA: dict[str, Any]
BRO: dict[str, Any]
"""Fields of SAC's config that are known by names of their own, for any environment: ten critics, two critics that drop
units, ten that learn with prior data, and residual networks; see redq.toml, droq.toml, rlpd.toml and simba.toml. BRO:
fields of TQC's, for large critics that are regularised and reset; see bro.toml."""
OF = {"REDQ": "sac", "DROQ": "sac", "RLPD": "sac", "SIMBA": "sac", "BRO": "tqc"}


@dataclass(frozen=True)
class Preset:
    """Hyperparameters that are known to learn one environment.

    config: fields of the algorithm's config that differ from their defaults, or that the source names.
    """

    config: dict[str, Any]
    steps: int
    environments: int
    source: str


@dataclass(frozen=True)
class Preprocessing:
    """The arguments of `Run` that environments of one family are trained with, whatever the algorithm."""

    wrappers: tuple[str, ...]
    frame_stack: int = 1
    env_args: dict[str, Any] = field(default_factory=dict)


ATARI_PREPROCESSING = Preprocessing(
    # No-op starts, 4 frames a step of which the last two are max-pooled, 84 x 84 grey. It skips the frames itself.
    wrappers=("gymnasium.wrappers:AtariPreprocessing",),
    frame_stack=4,
    env_args={"frameskip": 1},
)


def lookup(algorithm: str, env_id: str) -> Preset | None:
    """The preset of an algorithm for an environment as runs name it, else the one for its family, or None. The same
    task as a pure function has the task's."""
    tuned, env_id = of(algorithm), env_id.removeprefix("functional:")
    return tuned.get(env_id, tuned.get(ATARI) if _is_atari(env_id) else None)


def preprocessing(env_id: str) -> Preprocessing | None:
    """What an environment is wrapped in where its user says nothing else, or None."""
    return ATARI_PREPROCESSING if _is_atari(env_id) else None


def _is_atari(env_id: str) -> bool:
    return env_id.removeprefix("ale_py:").startswith(ATARI.removesuffix("*"))


def none_for(algorithm: str, env_id: str) -> str | None:
    """A note that an algorithm has no preset for an environment, with those that it has; None where it has one."""
    if lookup(algorithm, env_id) is not None:
        return None
    tuned = of(algorithm)
    elsewhere = f" It has presets for {', '.join(tuned)}." if tuned else ""
    return f"{algorithm} has no preset for {env_id}; the default hyperparameters are used.{elsewhere}"


def of(algorithm: str) -> dict[str, Preset]:
    """The presets of an algorithm by environment, those of the user's folder first among equals."""
    users = os.environ.get(USERS)
    if not users:
        return _built_in(algorithm)
    if not Path(users).is_dir():
        raise ConfigError(f"{USERS} = {users}: expected a folder with files such as dqn.toml.")
    if unknown := sorted(path.name for path in Path(users).glob("*.toml") if path.stem not in ALGORITHMS):
        raise ConfigError(f"{Path(users) / unknown[0]}: expected the name of an algorithm, which `etude list` lists.")
    return _built_in(algorithm) | _presets(algorithm, (Path(users), HERE))


@functools.cache
def _built_in(algorithm: str) -> dict[str, Preset]:
    return _presets(algorithm, (HERE,))


def _presets(algorithm: str, folders: tuple[Path, ...]) -> dict[str, Preset]:
    """Those of the first folder, which may build on those of the others."""
    found = {}
    for environment in _tables(folders[0], algorithm)[1]:
        place = f"{folders[0] / algorithm}.toml, {environment}"
        data = _table(algorithm, environment, folders, place)
        source, steps, environments = (data.pop(name, "") for name in ("source", "steps", "environments"))
        for name, count in (("steps", steps), ("environments", environments)):
            whole_number(f"{place}: {name}", count)
        config = _with_fields(ALGORITHMS[algorithm][1](), data, place)
        found[environment] = Preset({name: getattr(config, name) for name in data}, steps, environments, source)
    return found


def _table(algorithm: str, environment: str, folders: tuple[Path, ...], place: str, *above: Path) -> dict[str, Any]:
    """A table over what it builds on and the fields above all tables, its source among them. above: what builds on
    it."""
    for folder in folders:
        general, tables = _tables(folder, algorithm)
        here = folder / algorithm / environment
        if environment in tables and here not in above:
            own = tables[environment]
            if "base" in own:
                place = f"{place}: base = {own['base']!r}"
                base, _, of_base = str(own.pop("base")).partition("/")
                held = _table(base, of_base, folders, place, *above, here)
                known = {"source", "steps", "environments", *_fields(ALGORITHMS[algorithm][1])}
                own = _over({name: value for name, value in held.items() if name in known}, own)
            return _over(general, own)
    raise ConfigError(f"{place}: there is no such preset beside those that build on this one.")


def _tables(folder: Path, algorithm: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(the fields above all tables, the tables by environment) of a file; nothing where there is none."""
    path = folder / f"{algorithm}.toml"
    if algorithm not in ALGORITHMS or not path.exists():
        return {}, {}
    data, known = _parsed(path, str(path)), {"steps", "environments", *_fields(ALGORITHMS[algorithm][1])}
    tables = {name: value for name, value in data.items() if name not in known and isinstance(value, dict)}
    if unknown := data.keys() - tables.keys() - known:
        raise ConfigError(f"{path}: {explain(ALGORITHMS[algorithm][1].__name__, unknown, sorted(known))}")
    text = path.read_text(encoding="utf-8")
    for comment, name in re.findall(r"""((?:^#.*\n)+)\[["']?(.+?)["']?\]""", text, re.MULTILINE):
        if name in tables:
            tables[name]["source"] = " ".join(line.removeprefix("#").strip() for line in comment.splitlines())
    return {name: value for name, value in data.items() if name not in tables}, tables


def read_config(path: Path, algorithm: str, base: Any) -> Any:
    """`base`, a config of the algorithm, with the fields that a file of TOML or JSON names; of the config.json of a
    run, its part `config`."""
    data = _parsed(path, f"--config {path}")
    if isinstance(data.get("config"), dict) and "algorithm" in data:
        if data["algorithm"] != algorithm:
            raise ConfigError(f"{path} is of a run of {data['algorithm']}; expected one of {algorithm}.")
        if data.get("functions"):
            names = ", ".join(data["functions"])
            raise ConfigError(f"{path}: {names} was a function of one's own, which is not in it. Train from Python.")
        data = present_config(data)["config"]
    return _with_fields(base, data, str(path))


def _with_fields(base: Any, data: dict[str, Any], place: str) -> Any:
    """A config with the fields that plain data names. ConfigError begins with the place that it is from."""
    kind, known = type(base), _fields(type(base))
    if unknown := data.keys() - {"class", *known}:
        raise ConfigError(f"{place}: {explain(kind.__name__, unknown, known)}")
    try:
        return from_json(kind, _over(to_json(base), data))
    except ConfigError as problem:
        raise ConfigError(f"{place}: {problem}") from problem


def _fields(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if field.init]


def _parsed(path: Path, name: str) -> dict[str, Any]:
    read: dict[str, Callable[[], dict[str, Any]]] = {
        ".toml": lambda: _with_none(tomllib.loads(path.read_text(encoding="utf-8"))),
        ".json": lambda: read_object(path),
    }
    if path.suffix.lower() not in read:
        raise ConfigError(f"{name}: expected a file that ends in {' or '.join(read)}.")
    try:
        return read[path.suffix.lower()]()
    except OSError as problem:
        raise ConfigError(f"{name} cannot be read: {problem.strerror}.") from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(
            f"{path} does not hold hyperparameters by name in {path.suffix[1:].upper()}: {problem}."
        ) from problem


def _with_none(value: Any) -> Any:
    """TOML has no None: "None" stands for it, as on the command line."""
    if isinstance(value, dict):
        return {name: _with_none(each) for name, each in value.items()}
    return None if value == "None" else value


def _over(base: Any, data: Any) -> Any:
    """`data`, with what it leaves out of a dataclass taken from `base`, where that is of the same class."""
    if not (isinstance(base, dict) and isinstance(data, dict)):
        return data
    if data.get("class", base.get("class")) != base.get("class"):
        return data
    return base | {name: _over(base.get(name), value) for name, value in data.items()}


def __getattr__(name: str) -> Any:  # what is read when it is asked for
    if name == "PRESETS":
        return {algorithm: held for algorithm in ALGORITHMS if (held := of(algorithm))}
    if name in OF:
        path, base = HERE / f"{name.lower()}.toml", ALGORITHMS[OF[name]][1]()
        return {field: getattr(read_config(path, OF[name], base), field) for field in _parsed(path, str(path))}
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


__all__ = [
    "BRO", "DROQ", "PRESETS", "REDQ", "RLPD", "SIMBA", "Preprocessing", "Preset", "lookup", "none_for", "preprocessing",
    "read_config",
]  # fmt: skip
