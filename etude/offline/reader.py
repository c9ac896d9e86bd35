"""Recorded episodes read one after the other, of any amount."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from etude.base import trees
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Spaces, zeros
from etude.offline.canonical import canonical_spaces
from etude.offline.dataset import Dataset
from etude.offline.limits import COPIES, require_memory
from etude.offline.locations import files_at, local, share
from etude.offline.streaming import FileStream


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
        self,
        source: str | os.PathLike[str] | Iterable[Any],
        *,
        spaces: Spaces | None = None,
        shuffle: int = 0,
    ):
        if not isinstance(shuffle, int) or shuffle < 0:
            raise ConfigError(f"shuffle = {shuffle!r}; expected a whole number of episodes, at least 0.")
        self.files: tuple[str, ...] = files_at(source)
        if not self.files:
            raise DataError("There are no files to read from; expected at least one.")
        self._shuffle = shuffle
        with local(self.files[0]) as path:
            first = FileStream(path, spaces)
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
                stream = FileStream(path, self.source)
                require_memory(path, _claimed(stream))
                episodes += stream
                dropped += stream.dropped
        if not episodes:
            raise DataError(f"{self.files[0]}: there are no episodes to learn from; expected at least one.")
        return Dataset(tuple(episodes), self.source, self.environment, dropped)

    def _file(self, file: str) -> Iterator[Episode]:
        with local(file) as path:
            yield from FileStream(path, self.source)


def _claimed(stream: FileStream) -> int:
    """The bytes that the transitions of a file take in memory, where it says how many there are."""
    transitions, spaces = stream.metadata.get("transitions"), canonical_spaces(stream.spaces)
    row = trees.count_bytes((zeros(spaces.observation), zeros(spaces.action)))
    return transitions * row // COPIES if isinstance(transitions, int) else 0  # each file is let go when it is read


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
