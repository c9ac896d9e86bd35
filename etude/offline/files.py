"""Files of episodes: HDF5 (`.h5`, `.hdf5`) in D4RL's layout, and Parquet (`.parquet`) with the same columns.

The whole file is held in memory. Columns: see `layout`. Metadata: JSON under the name `etude`, as an attribute of the
HDF5 file or in the schema of the Parquet table.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from etude.base import spaces as spaces_
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Spaces, describe
from etude.offline import hdf5, parquet
from etude.offline.columns import join, split
from etude.offline.dataset import Dataset
from etude.offline.layout import to_arrays, to_columns
from etude.offline.limits import require_regular

FORMATS = {".h5": hdf5, ".hdf5": hdf5, ".parquet": parquet}
VERSION = 1
DEEPEST = 32  # of spaces in spaces
LARGEST_BOX = 2**24  # numbers


def write(path: Path | str, dataset: Dataset) -> None:
    """Write episodes in the environment's own values: Box actions scaled to its bounds, Discrete ones counted from its
    start.

    `next_observations` are written, so that the true final observation of every episode is kept. The file is complete,
    or not there at all: it is written beside and renamed.
    """
    path = Path(path)
    form = _format(path)
    episodes, spaces = dataset.episodes, dataset.source
    if not episodes or not all(len(episode.reward) for episode in episodes):
        raise DataError(f"{path}: nothing to write; expected at least one episode, of at least one transition each.")
    columns = join(episodes)
    about = {
        "version": VERSION,
        "environment": dataset.environment,
        "observation_space": spaces_.to_json(spaces.observation),
        "action_space": spaces_.to_json(spaces.action),
        "episodes": len(episodes),
        "transitions": len(columns.reward),
    }
    partial = path.with_name(f"{path.name}.partial")
    try:
        form.write(partial, to_arrays(columns, spaces), json.dumps(about))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path | str, spaces: Spaces | None = None) -> Dataset:
    """The episodes of a file, as agents see them.

    spaces: the environment's own; needed where the file does not say them, as D4RL's do not. Where it does, they have
        to be the same. How episodes are found, and what is dropped: `columns.split`.
    Raises DataError with file, column and row for what is missing, damaged or does not belong to the spaces.
    """
    path = Path(path)
    form = _format(path)
    require_regular(path)
    arrays, text = form.read(path)
    about = _about(text, path)
    spaces = _spaces(about, spaces, path)
    columns = to_columns(arrays, spaces, str(path))
    episodes, dropped = split(columns, str(path))
    if not episodes:
        raise DataError(
            f"{path}: each of its episodes is one transition that timed out, and there are no next_observations: what "
            "followed is unknown, and nothing can be learned."
        )
    for name, count in (("transitions", len(columns.reward)), ("episodes", len(episodes))):
        if about.get(name, count) != count:
            raise DataError(
                f"{path}: it holds {count} {name} and says that it has {_shown(about[name])}: it is incomplete, or "
                "another program changed it. Record it again, or remove its metadata, 'etude'."
            )
    return Dataset(tuple(episodes), spaces, about.get("environment"), dropped)


def _format(path: Path) -> Any:
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: recorded data ends in {', '.join(FORMATS)}; got {path.suffix or 'no suffix'!r}.")
    return FORMATS[path.suffix]


def _about(text: str | None, path: Path) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        about = json.loads(text)
        version = about["version"]
    except (ValueError, KeyError, RecursionError, TypeError):
        raise DataError(f"{path}: its metadata, 'etude', is damaged. Record it again, or remove them.") from None
    if version != VERSION:
        raise DataError(f"{path}: its layout is version {_shown(version)}; this etude reads {VERSION}. Upgrade etude.")
    return about


def _shown(value: Any) -> str:
    """What a file says, for a message; of a long text, its beginning."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _space(about: dict[str, Any], name: str, path: Path) -> Any:
    """A space in the metadata."""
    try:
        _check_sizes(about[name])
        return spaces_.from_json(about[name])
    except (AssertionError, AttributeError, LookupError, OverflowError, StopIteration, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: its metadata, 'etude', has a damaged {name} ({_shown(repr(error))}). Record it again, or "
            "remove them."
        ) from None


def _check_sizes(data: Any, depth: int = 0) -> None:
    """Raise ValueError where a space would be too large to make, or is nested too deeply."""
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        if key == "shape" and math.prod(part) > LARGEST_BOX:
            raise ValueError(f"a Box of shape {part}")
        _check_sizes(part, depth + 1)


def _spaces(about: dict[str, Any], given: Spaces | None, path: Path) -> Spaces:
    if "action_space" not in about:
        if given is None:
            raise DataError(
                f"{path}: it does not say its spaces. Give those of the environment: "
                "read(path, Spaces(env.observation_space, env.action_space))."
            )
        return given
    held = Spaces(_space(about, "observation_space", path), _space(about, "action_space", path))
    if given is None:
        return held
    pairs = (("observations", held.observation, given.observation), ("actions", held.action, given.action))
    for name, mine, theirs in pairs:
        same_bounds = name == "observations" or spaces_.to_json(mine) == spaces_.to_json(theirs)
        if describe(mine) != describe(theirs) or not same_bounds:
            raise DataError(
                f"{path}: its {name} are of {mine}; expected {theirs}. It was recorded in another environment "
                f"({_shown(about.get('environment'))})."
            )
    return held
