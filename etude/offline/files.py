"""Files of episodes, by how their names end; see `layout` for their columns.

    .h5, .hdf5         HDF5 in D4RL's layout
    .parquet           a table with the same columns
    .jsonl, .jsonl.gz  lines of JSON, one for each episode
    -v0 (a folder)     a Minari data set
    .json              RLlib's lines of JSON, read only
    .csv               a table with the same columns, read only

What describes a file is JSON under the name `etude`."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import spaces as spaces_
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Spaces, describe, from_zero, origins_of, with_origins
from etude.offline import hdf5, json_lines, minari, parquet, rllib, tables
from etude.offline.blocks import EpisodeAssembler, split
from etude.offline.dataset import Dataset, to_steps
from etude.offline.layout import Arrays, to_arrays, to_columns

VERSION = 1
DEEPEST = 32  # of spaces in spaces
LARGEST_BOX = 2**24  # numbers


def describe_recording(environment: str | None, spaces: Spaces) -> dict[str, Any]:
    """What a file says of itself, as plain data."""
    found: dict[str, Any] = {"version": VERSION, "environment": environment, **_plain(spaces)}
    if spaces.agents is not None:
        found["agents"] = {name: _plain(own) for name, own in spaces.agents.items()}
        found["turns"] = spaces.turns
    return found


def _plain(spaces: Spaces) -> dict[str, Any]:
    return {"observation_space": spaces_.to_json(spaces.observation), "action_space": spaces_.to_json(spaces.action)}


def check_counts(about: dict[str, Any], transitions: int, episodes: int, path: Path) -> None:
    """Raise DataError where a file holds something else than it says."""
    for name, count in (("transitions", transitions), ("episodes", episodes)):
        if about.get(name, count) != count:
            raise DataError(
                f"{path}: it holds {count} {name} and says that it has {_shown(about[name])}: it is incomplete, or "
                "another program changed it. Record it again, or remove its metadata, 'etude'."
            )


def parsed(text: str | None, path: Path) -> dict[str, Any]:
    """What a file says of itself, from the text that says it. Raises DataError where it is damaged."""
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
        if key == "context" and part > LARGEST_BOX:
            raise ValueError(f"{part} tokens")
        _check_sizes(part, depth + 1)


def spaces_of(about: dict[str, Any], given: Spaces | None, path: Path) -> Spaces:
    """The spaces that a file says, or those that are given. Raises DataError where they differ, or there are none."""
    if "action_space" not in about:
        if given is None:
            raise DataError(
                f"{path}: it does not say its spaces. Give those of the environment: "
                "read(path, Spaces(env.observation_space, env.action_space))."
            )
        return given
    held = Spaces(_space(about, "observation_space", path), _space(about, "action_space", path))
    agents = about.get("agents")
    if agents is not None:
        if not isinstance(agents, dict) or not all(isinstance(own, dict) for own in agents.values()):
            raise DataError(f"{path}: its metadata, 'etude', has damaged agents. Record it again.")
        own = {name: Spaces(_space(each, "observation_space", path), _space(each, "action_space", path))
               for name, each in agents.items()}  # fmt: skip
        held = Spaces(held.observation, held.action, own, about.get("turns") is True)
    if given is None:
        return held
    held = replace(held, observation=with_origins(held.observation, origins_of(given.observation)))
    seen = (from_zero(held.observation), from_zero(given.observation))  # as agents see them, float64 as float32
    pairs = (("observations", *seen), ("actions", held.action, given.action))
    for name, mine, theirs in pairs:
        same_bounds = name == "observations" or spaces_.to_json(mine) == spaces_.to_json(theirs)
        if describe(mine) != describe(theirs) or not same_bounds:
            world = about.get("environment")  # None: of a callable
            place = "another environment" if world is None else f"another environment ({_shown(world)})"
            raise DataError(f"{path}: its {name} are of {mine}; expected {theirs}. It was recorded in {place}.")
    return held


FORMATS: dict[str, Any] = {
    ".h5": hdf5, ".hdf5": hdf5, ".parquet": parquet, ".jsonl": json_lines, ".jsonl.gz": json_lines, ".json": rllib,
    ".csv": tables,
}  # fmt: skip
WHOLE = (hdf5, parquet, tables)  # formats that are read as a whole as well


def write(path: Path | str, dataset: Dataset) -> None:
    """Write episodes in the environment's own values: Box actions scaled to its bounds, Discrete ones counted from its
    start.

    The true final observation of every episode is kept. The file is complete, or not there at all: it is written
    beside and renamed. `path` ends in .h5, .hdf5, .parquet, .jsonl or .jsonl.gz; or in -v0, -v1, ..., a new folder,
    which is a Minari data set. Raises DataError where it cannot be written.
    """
    path = Path(path)
    episodes, spaces = dataset.episodes, dataset.source
    if not episodes or not all(len(episode.reward) for episode in episodes):
        raise DataError(f"{path}: nothing to write; expected at least one episode, of at least one transition each.")
    form = minari if minari.is_named(path) else format_of(path)
    if form in (rllib, tables) or (form is minari and path.exists()):
        raise ConfigError(f"{path}: it {'exists' if form is minari else 'is read only'}. Give another name.")
    about = describe_recording(dataset.environment, spaces)
    about |= {"episodes": len(episodes), "transitions": len(dataset)}
    partial, assembler = path.with_name(f"{path.name}.partial"), EpisodeAssembler()
    assembler.add(to_steps(episodes))
    block = assembler.take()
    assert block is not None
    try:
        if form in WHOLE:
            form.write(partial, to_arrays(block.columns(), spaces), json.dumps(about))
        else:
            compression = "gzip" if form is minari or path.suffix == ".gz" else "none"
            shard = (minari.MinariShard if form is minari else json_lines.JsonLinesShard)(
                partial, spaces, compression, about
            )
            shard.append(block)
            shard.close(about)
        os.replace(partial, path)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise DataError(f"{path} cannot be written: {reason}. Name another file, or free some space.") from error
    finally:
        remove(partial)


def read(
    source: Path | str | tables.ArrowTable | tables.FormattedDataset,
    spaces: Spaces | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    episode_ends: Any = None,
    max_episode_steps: int | None = None,
    clip: bool = False,
) -> Dataset:
    """The episodes of a file, or of a table in memory (a frame of pandas or polars, a pyarrow.Table, a Dataset of
    Hugging Face's datasets), as agents see them.

    columns: etude's names by those that the file has, such as {"obs": "observations"}; several that become one are its
        numbers.
    episode_ends, max_episode_steps: where episodes end that do not terminate, if the file does not say it (`timeouts`):
        flags or numbers of episodes, or the name of a column of them; and the steps that an episode takes at most.
        Without either, episodes end where `next_observations` are not those of the next row. With max_episode_steps=1
        each row is an episode.
    clip: move Box actions beyond their bounds onto them.
    spaces: the environment's own; needed where the file does not say them, as D4RL's do not. Where it does, they have
        to be the same. How episodes are found, and what is dropped: `columns.split`.
    Raises DataError with file, column and row for what is missing, damaged or does not belong to the spaces.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        form = format_of(path)
        arrays, text = form.read(path) if form in WHOLE else (joined(list(form.stream(path)), path), form.about(path))
    elif isinstance(source, tables.ArrowTable | tables.FormattedDataset):
        path, text, arrays = Path(type(source).__name__), None, tables.in_memory(source)
    else:
        raise ConfigError(
            f"read was given a {type(source).__name__}; expected the path of a file, a frame of pandas or polars, a "
            "pyarrow.Table, or a Dataset of Hugging Face's datasets."
        )
    about = parsed(text, path)
    spaces = spaces_of(about, spaces, path)
    arrays = tables.renamed(arrays, columns or {}, str(path))
    if not about or episode_ends is not None or max_episode_steps is not None:
        arrays = tables.with_ends(arrays, episode_ends, max_episode_steps, str(path))
    found = to_columns(arrays, spaces, str(path), clip)
    episodes, dropped = split(found, str(path))
    if not episodes:
        raise DataError(
            f"{path}: each of its episodes is one transition that timed out, and there are no next_observations: what "
            "followed is unknown, and nothing can be learned."
        )
    check_counts(about, len(found.reward), len(episodes), path)
    return Dataset(tuple(episodes), spaces, about.get("environment"), dropped)


def joined(parts: list[Arrays], path: Path) -> Arrays:
    """Columns one after the other. DataError where the parts have other columns, or rows of other shapes."""
    if len(parts) == 1:
        return parts[0]
    names = list(parts[0]) if parts else []
    for i, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            raise DataError(f"{path}: part {i} has the columns {sorted(part)}, and the first {sorted(names)}.")
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in names}
    except ValueError as error:
        raise DataError(f"{path}: rows of a column have several shapes ({error}).") from None


def metadata_of(path: Path) -> dict[str, Any]:
    """What a file says of itself; empty for those of other programs."""
    return parsed(format_of(path).about(path), path)


def format_of(path: Path) -> Any:
    """The module that reads a file or a folder. Raises ConfigError for other names, DataError where it is not there."""
    if minari.is_minari(path):
        return minari
    form = next((form for suffix, form in FORMATS.items() if path.name.endswith(suffix)), None)
    if form is None:
        raise ConfigError(
            f"{path}: recorded data ends in {', '.join(FORMATS)}, or is a Minari folder; got "
            f"{path.suffix or 'no suffix'!r}."
        )
    return form


def remove(path: Path) -> None:
    """Remove a file or folder that was being written, where it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


PARTIAL, SUPERSEDED = ".partial", ".superseded"
KEPT = 3  # checkpoints of a kind whose open episodes are kept, as many as a run directory has


class Recording:
    """The files of one name."""

    def __init__(self, folder: Path, name: str, suffix: str):
        self.folder: Path = folder
        self._name, self._suffix = name, suffix
        self._shard = re.compile(rf"{re.escape(name)}-(\d{{5,}}){re.escape(suffix)}")
        self._open = re.compile(rf"\.{re.escape(name)}-(\d+)\.(last|best){re.escape(suffix)}")

    def path(self, number: int) -> Path:
        """Of a shard."""
        return self.folder / f"{self._name}-{number:05d}{self._suffix}"

    def shards(self) -> list[Path]:
        """The complete ones, in order."""
        found = [(int(match[1]), path) for path in self._entries() if (match := self._shard.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def next_number(self) -> int:
        """The number of the next shard."""
        shards = self.shards()
        match = self._shard.fullmatch(shards[-1].name) if shards else None
        return int(match[1]) + 1 if match else 0

    def supersede(self, step: int) -> list[Path]:
        """Rename the shards with episodes that ended after `step`, and remove what was left unfinished; returns the
        new names."""
        renamed = []
        for path in self.shards():
            if metadata_of(path).get("step", 0) > step:
                renamed.append(_free(path.with_name(path.name + SUPERSEDED)))
                os.replace(path, renamed[-1])
        for path in self._entries():
            if path.name.endswith(PARTIAL) and self._shard.fullmatch(path.name.removesuffix(PARTIAL)):
                remove(path)
        return renamed

    def open_path(self, step: int, kind: str) -> Path:
        """The file of the episodes that are open at a checkpoint."""
        return self.folder / f".{self._name}-{step}.{kind}{self._suffix}"

    def open_at(self, step: int) -> Path | None:
        """The episodes that were open at a step; None where none are kept."""
        return next((path for at, _, path in self._opened() if at == step), None)

    def forget_open(self, keep: int = KEPT) -> None:
        """Remove all but the newest files of open episodes."""
        for kind in ("last", "best"):
            found = sorted((at, path) for at, its, path in self._opened() if its == kind)
            for _, path in found[: len(found) - keep]:
                remove(path)

    def _opened(self) -> list[tuple[int, str, Path]]:
        matches = [(self._open.fullmatch(path.name), path) for path in self._entries()]
        return [(int(match[1]), match[2], path) for match, path in matches if match]

    def _entries(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []


def _free(path: Path) -> Path:
    """The path, or it with the first number behind it that is free."""
    count = 0
    found = path
    while found.exists():
        count += 1
        found = path.with_name(f"{path.name}-{count}")
    return found
