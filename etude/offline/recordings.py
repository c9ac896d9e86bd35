"""The files of one recording in a folder: shards, the one that is being written, and open episodes at checkpoints.

NAME-00000.parquet              a shard of whole episodes
NAME-00001.parquet.partial      the one that is being written, or was when its process was killed
NAME-00002.parquet.superseded   episodes after the checkpoint that the run went on from: recorded again
.NAME-4000.last.parquet         the episodes that were open at a checkpoint of step 4000
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from etude.offline.files import metadata_of, remove

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
