"""Recorded episodes read one after the other, of any amount: where they are (files, folders, patterns, Minari data
sets, remote addresses), what they hold, and what of it is damaged."""

from __future__ import annotations

import copy
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from etude.base import trees
from etude.base.checks import whole_number
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError, needing
from etude.base.spaces import Spaces, zeros
from etude.offline import minari
from etude.offline.blocks import split
from etude.offline.dataset import Dataset, canonical_spaces
from etude.offline.files import FORMATS, PARTIAL, SUPERSEDED, check_counts, format_of, joined, parsed, spaces_of
from etude.offline.layout import BLOCK, COPIES, FLAGS, Arrays, require_memory, texts_of, to_columns


class _FileStream:
    """Reads the episodes of a file in order, holding a few megabytes of them, or one episode.

    Arguments and errors: see `files.read`. metadata: what the file says of itself. transitions, dropped: so far.
    """

    def __init__(self, path: Path, spaces: Spaces | None = None):
        self.path: Path = path
        self._form = format_of(path)
        self.metadata: dict[str, Any] = parsed(self._form.about(path), path)
        self.spaces: Spaces = spaces_of(self.metadata, spaces, path)
        self.transitions: int = 0
        self.dropped: int = 0

    def __iter__(self) -> Iterator[Episode]:
        self.transitions = self.dropped = count = 0
        for arrays in self._whole_episodes():
            columns = to_columns(arrays, self.spaces, str(self.path))
            episodes, dropped = split(columns, str(self.path))
            self.transitions += len(columns.reward)
            self.dropped += dropped
            count += len(episodes)
            yield from episodes
        check_counts(self.metadata, self.transitions, count, self.path)

    def _whole_episodes(self) -> Iterator[Arrays]:
        """The columns, cut where an episode ends."""
        held: list[Arrays] = []
        size, ended = 0, False
        for arrays in self._form.stream(self.path):
            held.append(arrays)
            size += sum(values.nbytes for values in arrays.values())
            ended = ended or _last_end(arrays) > 0
            if size < BLOCK or not ended:
                continue
            whole = joined(held, self.path)
            stop = _last_end(whole)
            yield {name: values[:stop] for name, values in whole.items()}
            rest = {name: values[stop:].copy() for name, values in whole.items()}  # a view would keep all of it
            held = [rest] if stop < len(whole["rewards"]) else []
            size, ended = sum(values.nbytes for part in held for values in part.values()), False
        if held:
            yield joined(held, self.path)


def _last_end(arrays: Arrays) -> int:
    """How many rows there are up to the last that ends an episode; 0 where none does, or columns do not fit together,
    of which `to_columns` says what is wrong."""
    flags = [arrays[name].reshape(-1) for name in FLAGS if name in arrays]
    rows = {len(values) if values.ndim else 0 for values in arrays.values()}
    if len(flags) != len(FLAGS) or len(rows) != 1 or {len(each) for each in flags} != rows:
        return 0
    ends = np.flatnonzero((flags[0] != 0) | (flags[1] != 0))
    return int(ends[-1]) + 1 if len(ends) else 0


REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://")
T = TypeVar("T")


def is_remote(source: str) -> bool:
    """Whether a source is an address, such as `s3://bucket/folder`."""
    return REMOTE.match(source) is not None


def _files_at(source: str | os.PathLike[str] | Iterable[Any]) -> tuple[str, ...]:
    """The files of recorded data that a source names, in order: paths, or remote addresses.

    source: a file, a folder of them, a pattern (`runs/*/*.parquet`), a Minari data set (its folder or its id), a remote
    folder or file, or a list of these. Raises DataError where there are none.
    """
    if not isinstance(source, str | os.PathLike):
        return tuple(file for each in source for file in _files_at(each))
    text = os.fspath(source)
    if is_remote(text):
        fsspec = _fsspec()
        try:
            system, path = fsspec.core.url_to_fs(text)
            if path.endswith(tuple(FORMATS)) and not glob.has_magic(path):
                return (text,)
            found = system.glob(path) if glob.has_magic(path) else system.ls(path, detail=False)
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{text}: it cannot be listed ({error}). Check the address and your access.") from None
        files = sorted(
            each for each in found if each.endswith(tuple(FORMATS)) and not PurePosixPath(each).name.startswith(".")
        )
        if not files:
            raise DataError(
                f"{text}: there is no recorded data in it; expected files that end in {', '.join(FORMATS)}."
            )
        return tuple(system.unstrip_protocol(each) for each in files)
    path = Path(text)
    if (path / "checkpoints").is_dir() and (path / "config.json").exists():
        raise DataError(
            f"{text} is the directory of a run, and no recorded data. Runs are recorded by `etude train --output "
            f"FOLDER` or by etude.offline.Writer; etude.replayed(etude.load({text!r})) has the episodes of its replay."
        )
    if path.is_dir() and not minari.is_minari(path):
        entries = sorted(each for each in path.iterdir() if not each.name.startswith("."))
        found = [
            each
            for each in entries
            if (minari.is_minari(each) or (each.is_file() and each.name.endswith(tuple(FORMATS))))
        ]
    elif path.exists():
        found = [path]
    elif glob.has_magic(text):
        found = sorted(Path(each) for each in glob.glob(text, recursive=True))
        found = [file for each in found for file in ([each] if not each.is_dir() or minari.is_minari(each) else [])]
    else:
        found = [minari.root() / text]  # where Minari keeps its data sets
        if os.path.isabs(text) or ".." in path.parts or not minari.is_minari(found[0]):
            raise DataError(f"{text}: there is no such file, folder or Minari data set.")
    if not found:
        raise DataError(f"{text}: there is no recorded data in it; expected files that end in {', '.join(FORMATS)}.")
    return tuple(map(str, found))


@contextmanager
def local(file: str) -> Iterator[Path]:
    """A file on this machine: itself, or a copy of a remote one, which is removed afterwards."""
    if not is_remote(file):
        yield Path(file)
        return
    folder = Path(tempfile.mkdtemp(prefix="etude-"))
    try:
        copy = folder / PurePosixPath(file).name
        try:
            with _fsspec().open(file, "rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{file}: it cannot be read ({error}). Check the address and your access.") from None
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share(files: tuple[T, ...], part: int, parts: int) -> tuple[T, ...]:
    """Every `parts`-th file, from number `part` on. Raises ConfigError where some part would have none."""
    if not 0 <= part < parts:
        raise ConfigError(f"part = {part} of {parts}; expected a number from 0 to {parts - 1}.")
    if len(files) < parts:
        raise ConfigError(
            f"There are {len(files)} files for {parts} parts, and each needs one. Record with a smaller max_bytes, or "
            "read with fewer parts."
        )
    return files[part::parts]


def _fsspec() -> Any:
    with needing("Reading remote data", "remote"):
        import fsspec
    return fsspec


@runtime_checkable
class EpisodeSource(Protocol):
    """What recorded episodes are read from: a `Reader`, or an object of your own."""

    @property
    def spaces(self) -> Spaces:
        """Those of the episodes, as agents see them."""

    def episodes(self, rng: np.random.Generator | None = None) -> Iterator[Episode]:
        """Every episode once. rng: draws their order; None: a fixed one."""


class Reader:
    """Reads episodes from files, with a few megabytes of a file in memory.

    source: a file, a folder, a pattern, a Minari data set (its folder or id), a remote address (`s3://bucket/folder`;
        needs fsspec), or a list of these.
    spaces: the environment's own; needed where files do not say them, such as D4RL's and RLlib's.
    shuffle: how many episodes are held, from which one is drawn at a time; 0: those of a file come in its order.

    Raises DataError where there is no data, and while reading, with the file and the place, where it is damaged.
    """

    def __init__(
        self, source: str | os.PathLike[str] | Iterable[Any], *, spaces: Spaces | None = None, shuffle: int = 0
    ):
        whole_number("shuffle", shuffle, 0, ": episodes")
        self.files: tuple[str, ...] = _files_at(source)
        if not self.files:
            raise DataError("There are no files to read from; expected at least one.")
        self._shuffle = shuffle
        with local(self.files[0]) as path:
            first = _FileStream(path, spaces)
        self.source: Spaces = first.spaces
        self.environment: Any = first.metadata.get("environment")

    @property
    def spaces(self) -> Spaces:
        """Those of the episodes, as agents see them: Box actions in [-1, 1], everything counted from 0."""
        return canonical_spaces(self.source)

    def part(self, part: int, parts: int) -> Reader:
        """A reader of a part of the files; two parts have no file in common. For workers that share the data."""
        other = copy.copy(self)
        other.files = share(self.files, part, parts)
        return other

    def episodes(self, rng: np.random.Generator | None = None) -> Iterator[Episode]:
        """Every episode once: files in random order, each from its beginning to its end, through a window of `shuffle`
        episodes. rng: draws the order; None reads the files as they are listed."""
        order = range(len(self.files)) if rng is None else rng.permutation(len(self.files)).tolist()
        found = (episode for number in order for episode in self._file(self.files[number]))
        return found if rng is None or not self._shuffle else _shuffled(found, self._shuffle, rng)

    def read(self) -> Dataset:
        """All episodes in memory. Raises DataError where they do not fit."""
        episodes: list[Episode] = []
        dropped = 0
        for file in self.files:
            with local(file) as path:
                stream = _FileStream(path, self.source)
                # The bytes that the transitions of a file take in memory, where it says how many there are
                transitions, spaces = stream.metadata.get("transitions"), canonical_spaces(stream.spaces)
                row = trees.count_bytes((zeros(spaces.observation), zeros(spaces.action)))
                # each file is let go when it is read
                require_memory(path, transitions * row // COPIES if isinstance(transitions, int) else 0)
                episodes += stream
                dropped += stream.dropped
            if episodes and (own := sorted(episodes[-1].extras)) != (first := sorted(episodes[0].extras)):
                raise DataError(
                    f"{file}: it holds the extras {own}, and the files before it {first}; expected the same in all. "
                    "Read files of different extras apart."
                )
        if not episodes:
            raise DataError(f"{self.files[0]}: there are no episodes to learn from; expected at least one.")
        return Dataset(tuple(episodes), self.source, self.environment, dropped)

    def _file(self, file: str) -> Iterator[Episode]:
        with local(file) as path:
            yield from _FileStream(path, self.source)


def _shuffled(episodes: Iterator[Episode], window: int, rng: np.random.Generator) -> Iterator[Episode]:
    held: list[Episode] = []
    for episode in episodes:
        if len(held) < window:
            held.append(episode)
            continue
        place = int(rng.integers(window))
        held[place], episode = episode, held[place]
        yield episode
    for place in rng.permutation(len(held)).tolist():
        yield held[place]


TEXTS = 3  # episodes of tokens whose text is shown


@dataclass
class Inspection:
    """files: how many could be read. returns: of every episode; of several agents, [agents]. behaviour: what recorded
    them, each once. damaged: what is wrong, by file. unfinished: files that were being written.
    superseded: shards of steps that a resumed run recorded again. texts: of the first episodes of tokens. extras:
    names. log_prob: whether all episodes have it."""

    spaces: Spaces | None = None
    environment: str | None = None
    files: int = 0
    transitions: int = 0
    dropped: int = 0
    terminated: int = 0
    returns: list[Any] = field(default_factory=list)
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
        files = _files_at(source)
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
    stream = _FileStream(path, found.spaces)
    found.spaces = stream.spaces
    found.environment = found.environment or stream.metadata.get("environment")
    run, behaviour = stream.metadata.get("run"), "not recorded"
    if isinstance(run, dict):
        behaviour = f"{run.get('algorithm')} on {stream.metadata.get('environment')}, seed {run.get('seed')}"
    if behaviour not in found.behaviour:
        found.behaviour.append(behaviour)
    for episode in stream:
        found.returns.append(episode.reward.sum(0, dtype=np.float64))
        found.lengths.append(len(episode.reward))
        found.terminated += episode.terminated
        found.extras |= set(episode.extras)
        if len(found.texts) < TEXTS:
            found.texts += texts_of(trees.rows(episode.observation, slice(-1, None)), stream.spaces.observation)
    found.files += 1
    found.transitions += stream.transitions
    found.dropped += stream.dropped


def _left(source: Any, ending: str) -> list[str]:
    paths: Iterable[Path] = Path(source).iterdir() if isinstance(source, str | Path) and Path(source).is_dir() else ()
    return sorted(str(path) for path in paths if path.name.endswith(ending) or f"{ending}-" in path.name)
