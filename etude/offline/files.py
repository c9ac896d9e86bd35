"""Files of episodes, by how their names end; see `layout` for their columns.

    .h5, .hdf5         HDF5 in D4RL's layout
    .parquet           a table with the same columns
    .jsonl, .jsonl.gz  lines of JSON, one for each episode
    -v0 (a folder)     a Minari data set
    .json              RLlib's lines of JSON, read only
    .csv               a table with the same columns, read only

What describes a file is JSON under the name `etude`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Spaces
from etude.offline import hdf5, json_lines, minari, parquet, rllib, tables
from etude.offline.blocks import EpisodeAssembler
from etude.offline.columns import join, split
from etude.offline.dataset import Dataset, to_steps
from etude.offline.layout import Arrays, to_arrays, to_columns
from etude.offline.metadata import check_counts, describe_recording, parsed, spaces_of

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
    which is a Minari data set.
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
    partial = path.with_name(f"{path.name}.partial")
    try:
        if form in WHOLE:
            form.write(partial, to_arrays(join(episodes), spaces), json.dumps(about))
        else:
            compression = "gzip" if form is minari or path.suffix == ".gz" else "none"
            shard = (minari.MinariShard if form is minari else json_lines.JsonLinesShard)(
                partial, spaces, compression, about
            )
            assembler = EpisodeAssembler()
            assembler.add(to_steps(episodes))
            block = assembler.take()
            assert block is not None
            shard.append(block)
            shard.close(about)
        os.replace(partial, path)
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
