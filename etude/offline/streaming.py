"""The episodes of one file, read some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.data import Episode
from etude.base.spaces import Spaces
from etude.offline.columns import split
from etude.offline.files import format_of, joined
from etude.offline.layout import FLAGS, Arrays, to_columns
from etude.offline.limits import BLOCK
from etude.offline.metadata import check_counts, parsed, spaces_of


class FileStream:
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
