"""What a folder of recorded data holds, and what of it is damaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.errors import DataError
from etude.base.spaces import Spaces
from etude.offline.layout import texts_of
from etude.offline.locations import files_at, local
from etude.offline.recordings import PARTIAL, SUPERSEDED
from etude.offline.streaming import FileStream

TEXTS = 3  # episodes of tokens whose text is shown


@dataclass
class Inspection:
    """files: how many could be read. returns: of every episode; of several agents, the sum of all. behaviour: what
    recorded them, each once. damaged: what is wrong, by file. unfinished: files that were being written.
    superseded: shards of steps that a resumed run recorded again. texts: of the first episodes of tokens. extras:
    names. log_prob: whether all episodes have it."""

    spaces: Spaces | None = None
    environment: str | None = None
    files: int = 0
    transitions: int = 0
    dropped: int = 0
    terminated: int = 0
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    extras: set[str] = field(default_factory=set)
    behaviour: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)


def inspect(source: Any, spaces: Spaces | None = None) -> Inspection:
    """Read all of a source, see `Reader`, one file after the other. Damaged files are named, and the others read.

    Raises DataError where there is none, or none says its spaces.
    """
    found = Inspection(spaces=spaces)
    found.unfinished, found.superseded = _left(source, PARTIAL), _left(source, SUPERSEDED)
    try:
        files = files_at(source)
    except DataError:
        if not found.unfinished:
            raise
        files = ()
    for file in files:
        with local(file) as path:
            try:
                _read(found, path)
            except DataError as error:
                found.damaged[file] = str(error)
    return found


def _read(found: Inspection, path: Path) -> None:
    stream = FileStream(path, found.spaces)
    found.spaces = stream.spaces
    found.environment = found.environment or stream.metadata.get("environment")
    if (behaviour := _behaviour(stream.metadata)) not in found.behaviour:
        found.behaviour.append(behaviour)
    for episode in stream:
        found.returns.append(float(episode.reward.sum(dtype=np.float64)))
        found.lengths.append(len(episode.reward))
        found.terminated += episode.terminated
        found.extras |= set(episode.extras)
        if len(found.texts) < TEXTS:
            found.texts += texts_of(trees.rows(episode.observation, slice(-1, None)), stream.spaces.observation)
    found.files += 1
    found.transitions += stream.transitions
    found.dropped += stream.dropped


def _behaviour(metadata: dict[str, Any]) -> str:
    run = metadata.get("run")
    if not isinstance(run, dict):
        return "not recorded"
    return f"{run.get('algorithm')} on {metadata.get('environment')}, seed {run.get('seed')}"


def _left(source: Any, ending: str) -> list[str]:
    paths: Iterable[Path] = Path(source).iterdir() if isinstance(source, str | Path) and Path(source).is_dir() else ()
    return sorted(str(path) for path in paths if path.name.endswith(ending) or f"{ending}-" in path.name)
