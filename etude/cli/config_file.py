"""Hyperparameters from a file: TOML, JSON, or the config.json of a run."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.checkpoint.config_json import from_json, to_json
from etude.checkpoint.old_names import present_config
from etude.checkpoint.plain import read_object

READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".toml": lambda path: tomllib.loads(path.read_text(encoding="utf-8")),
    ".json": read_object,
}


def read_config(path: Path, algorithm: str, base: Any) -> Any:
    """`base`, a config of the algorithm, with the fields that the file names; of a config.json, its part `config`."""
    data = _parsed(path)
    if isinstance(data.get("config"), dict) and "algorithm" in data:
        if data["algorithm"] != algorithm:
            raise ConfigError(f"{path} is of a run of {data['algorithm']}; expected one of {algorithm}.")
        if data.get("functions"):
            names = ", ".join(data["functions"])
            raise ConfigError(f"{path}: {names} was a function of one's own, which is not in it. Train from Python.")
        data = present_config(data)["config"]
    kind, known = type(base), [field.name for field in dataclasses.fields(base) if field.init]
    if unknown := data.keys() - {"class", *known}:
        raise ConfigError(f"{path}: {explain(kind.__name__, unknown, known)}")
    try:
        return from_json(kind, _joined(to_json(base), data))
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from problem


def _parsed(path: Path) -> dict[str, Any]:
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"--config {path}: expected a file that ends in {' or '.join(READERS)}.")
    try:
        data = read(path)
    except OSError as problem:
        raise ConfigError(f"--config {path} cannot be read: {problem.strerror}.") from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(
            f"{path} does not hold hyperparameters by name in {path.suffix[1:].upper()}: {problem}."
        ) from problem
    return data


def _joined(base: Any, data: Any) -> Any:
    """`data`, with what it leaves out of a dataclass taken from `base`, where that is of the same class."""
    if not (isinstance(base, dict) and isinstance(data, dict)) or data.get("class", base.get("class")) != base["class"]:
        return data
    return base | {name: _joined(base.get(name), value) for name, value in data.items()}
