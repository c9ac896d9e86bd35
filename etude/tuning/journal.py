"""The journal of a study: one file of JSON lines that are only ever appended, from which the study is rebuilt."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import etude.checkpoint as checkpoint
from etude.base.errors import CheckpointError, ConfigError
from etude.base.files import sync_directory
from etude.checkpoint.plain import parse
from etude.checkpoint.run_directory import numbered

NAME = "study.jsonl"
FORMAT = 1  # of its lines


def folder_of(given: str | os.PathLike[str] | None, root: Path, name: str) -> Path:
    """The folder of a study: the given one, or a new one in `root`. ConfigError where none can be made there."""
    try:
        return numbered(root, name) if given is None else Path(given)
    except OSError as error:
        raise ConfigError(
            f"No folder can be made in {root}: {error.strerror or error}. Give another one: folder= (--folder)."
        ) from error


class Journal:
    """The journal in a folder, locked against other processes.

    Each line is on the disk before `append` returns. A last line that a crash cut off is dropped.
    ConfigError where the folder cannot be written to or another process has the lock; CheckpointError where a line
    is damaged.
    """

    def __init__(self, folder: Path):
        self.path: Path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = checkpoint.Lock(folder / ".lock")
        except checkpoint.Locked as error:
            raise ConfigError(
                f"Another process carries out the study in {folder} ({error}). Wait until it has ended, or give "
                "another folder."
            ) from error
        except OSError as error:
            raise ConfigError(f"The folder {folder} of the study cannot be written to: {error.strerror}.") from error
        self.lines: list[dict[str, Any]] = []  # that were there
        self._file: io.FileIO | None = None
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        new = not self.path.exists()
        if not new:
            self.lines, whole = read_lines(self.path)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._file = io.FileIO(descriptor, "r+")
        if not new:
            self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        sync_directory(self.path.parent)

    def append(self, line: dict[str, Any]) -> None:
        """Write a line, durably. CheckpointError where that fails; the journal is then as it was."""
        if self._file is None:
            raise ConfigError(f"The journal {self.path} is closed. Make the study again: it goes on.")
        text, end = memoryview(json.dumps(line, allow_nan=False).encode() + b"\n"), self._file.tell()
        try:
            while text:
                text = text[self._file.write(text) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
                self._file.seek(end)
            raise CheckpointError(
                f"The journal {self.path} could not be written: {error.strerror or error}. Make room, and go on with "
                "the study: nothing that it holds is lost."
            ) from error

    def close(self) -> None:
        """Let other processes write. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """(the whole lines of a journal, their length in bytes). CheckpointError where one of them is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"There is no study in {path.parent}: {path.name} cannot be read.") from error
    whole = content.rfind(b"\n") + 1
    lines = []
    for number, text in enumerate(content[:whole].split(b"\n")[:-1], 1):
        try:
            line = parse(text)
        except ValueError as error:
            raise CheckpointError(f"{path}, line {number} is damaged: {error}. It was changed.") from error
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}, line {number} is damaged: {text[:40]!r}; expected an object.")
        lines.append(line)
    return lines, whole
