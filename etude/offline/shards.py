"""Blocks of episodes written to the shards of a recording, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from etude.base.spaces import Spaces
from etude.offline.blocks import EpisodeBlock
from etude.offline.files import remove
from etude.offline.hdf5 import Hdf5Shard
from etude.offline.json_lines import JsonLinesShard
from etude.offline.minari import MinariShard
from etude.offline.parquet import ParquetShard
from etude.offline.recordings import PARTIAL, Recording

PARTS = 24  # in which a shard is written at least
LARGEST_EXPANSION = 4  # bytes of a file for each byte in memory: JSON of float32


class ShardFile(Protocol):
    """A file of one format that is being written."""

    @property
    def size(self) -> int:
        """Bytes so far."""

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes."""

    def close(self, about: dict[str, Any]) -> None:
        """Complete the file. about: all that is known of it, as plain data."""


class ShardFormat(NamedTuple):
    """How shards of one format are made, from (path, spaces, compression, what is known before, size in bytes)."""

    make: Callable[[Path, Spaces, str, dict[str, Any], int], ShardFile]
    suffix: str
    compressions: tuple[str, ...]  # the default first


def _of_any_size(make: Callable[[Path, Spaces, str, dict[str, Any]], ShardFile]) -> Callable[..., ShardFile]:
    """For formats that write alike whatever the size of a shard."""
    return lambda path, spaces, compression, about, size: make(path, spaces, compression, about)


SHARD_FORMATS = {
    "parquet": ShardFormat(_of_any_size(ParquetShard), ".parquet", ParquetShard.COMPRESSIONS),
    "hdf5": ShardFormat(Hdf5Shard, ".h5", Hdf5Shard.COMPRESSIONS),
    "jsonl": ShardFormat(_of_any_size(JsonLinesShard), ".jsonl", JsonLinesShard.COMPRESSIONS),
    "minari": ShardFormat(_of_any_size(MinariShard), "-v0", MinariShard.COMPRESSIONS),
}


class ShardWriter:
    """Writes blocks of whole episodes; a shard that has reached its size is completed.

    make: a file from (path, what is known before). about: what all shards say of themselves. number: of the first.
    """

    def __init__(
        self,
        recording: Recording,
        make: Callable[[Path, dict[str, Any]], ShardFile],
        about: dict[str, Any],
        max_bytes: int,
        number: int,
    ):
        self._recording, self._make, self._about, self._max_bytes = recording, make, about, max_bytes
        self._number = number
        self._file: ShardFile | None = None
        self._episodes = self._transitions = 0
        self._size = 0  # bytes of the shard that is being written
        self._row_bytes = 0.0  # of a transition in a file, as far as is known

    def append(self, block: EpisodeBlock, step: int) -> None:
        """Write a block. step: of the run, at which its last episode ended at the latest.

        Raises OSError where it cannot be written; the shard is given up then, and the next block begins a new one.
        """
        part = self._max_bytes / PARTS  # bytes; a shard misses its size by half of it, and of an episode
        row_bytes = self._row_bytes or LARGEST_EXPANSION * block.bytes / len(block.reward)
        for each in block.split(max(1, int(part / row_bytes))):
            if self._size + self._row_bytes * len(each.reward) / 2 > self._max_bytes:
                self.complete(step)  # it misses its size by less than with this part
            try:
                self._append(each)
            except OSError:
                self._give_up()
                raise
            if self._size + part / 2 >= self._max_bytes:
                self.complete(step)

    def _append(self, block: EpisodeBlock) -> None:
        if self._file is None:
            self._file = self._make(self._partial, self._about)
            self._episodes = self._transitions = 0
        self._file.append(block)
        self._episodes += len(block)
        self._transitions += len(block.reward)
        self._size = self._file.size
        self._row_bytes = self._size / self._transitions

    def complete(self, step: int) -> None:
        """Complete the shard that is being written, if any. Raises OSError where it cannot be written."""
        if self._file is None:
            return
        file, path = self._file, self._recording.path(self._number)
        counts = {"episodes": self._episodes, "transitions": self._transitions, "step": step, "shard": self._number}
        try:
            file.close({**self._about, **counts})
            self._file, self._size = None, 0
            put(self._partial, path)
        except OSError:
            self._give_up()
            raise
        self._number += 1

    @property
    def _partial(self) -> Path:
        path = self._recording.path(self._number)
        return path.with_name(path.name + PARTIAL)

    def _give_up(self) -> None:
        """Make room: what is unfinished cannot be read."""
        file, self._file, self._size = self._file, None, 0
        if file is not None:
            with suppress(OSError, RuntimeError, ValueError):
                file.close(self._about)
        with suppress(OSError):
            remove(self._partial)


def put(partial: Path, path: Path) -> None:
    """Give a complete file its name, durably: Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI."""
    for each in [partial, *partial.rglob("*")] if partial.is_dir() else [partial]:
        _sync(each)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # network file systems that cannot, and need not
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
