"""The rows of a replay that several runs share, in the folder of their study: each is written once, and checkpoints of
the runs name the file that ends with their newest row."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import etude.checkpoint as checkpoint
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.run_directory import RunDirectory
from etude.replay import Buffer, Ring
from etude.replay.ring_changes import RingChanges, covers, ring_state
from etude.training.learner import Learner

if TYPE_CHECKING:
    from etude.run.run import Run

FOLDER = "replay"  # in that of the study
DEEP = 3  # how far below the folder of a study the checkpoints of its runs are, at most
_NAME = re.compile(r"rows-\d{9}-[0-9a-f]{8}\.etude")


class SharedReplay:
    """The replay that runs store into one after the other in this process, and what writes its rows. Every file holds
    what changed since the one before it, which it names; no file is written twice, so that what a checkpoint names
    stays as it was. folder: of their study."""

    def __init__(self, folder: Path):
        self._folder, self._count = folder / FOLDER, 0
        self._ring: Ring | None = None  # as the last run left it
        self._changes: RingChanges | None = None
        self._newest: str | None = None  # the file that ends with the newest row
        self._version = -1  # of the ring, as that file has it

    def directory(self, path: Path, keep: int) -> RunDirectory:
        """The directory of a run that stores into it."""
        return _SharingDirectory(path, keep, self)

    def store_into(self, run: Run, newest: Path | None, own: bool) -> None:
        """Let a run store into the replay. Its rows continue none of another run's.

        newest: the directory of the run that has stored last; None: none has. own: whether that is this run.
        """
        buffer = run.learner.replay if isinstance(run.learner, Learner) else run.learner
        if not isinstance(buffer, Buffer):
            raise ConfigError(f"shared_replay = True: no run can share its {type(buffer).__name__}. Leave it off.")
        if self._ring is None:
            self._follow(buffer.ring, None if newest is None else _restored(buffer.ring, newest, own))
        else:
            buffer.share(self._ring)
        self._ring = buffer.ring
        if not own:
            self._ring.cut(np.arange(self._ring.environments))

    def forget(self) -> bool:
        """Forget what no checkpoint has: the next run restores the replay. Whether there was one."""
        was, self._ring = self._ring is not None, None
        return was

    def _follow(self, ring: Ring, newest: str | None) -> None:
        """Write the rows of this ring from now on. newest: the file of those that it holds; None: none has them."""
        self._changes, self._newest = RingChanges(ring, saved=newest is not None), newest
        self._version = -1 if newest is None else ring.version
        self._count = 0 if newest is None else int(newest.split("-")[1]) + 1

    def without_rows(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of a run, with the name of a file in the place of the rows of its replay. CheckpointError where the
        file cannot be written."""
        assert self._changes is not None
        ring = self._changes.ring
        if ring.version != self._version:
            name = f"rows-{self._count:09d}-{secrets.token_hex(4)}.etude"
            try:
                checkpoint.write(self._folder / name, {"changes": self._changes.take(), "before": self._newest or ""})
            except BaseException:
                self._follow(ring, None)  # the next file has all rows
                raise
            self._newest, self._version, self._count = name, ring.version, self._count + 1
        return {**state, "replay": {**state["replay"], "ring": {"file": self._newest}}}


def _restored(ring: Ring, newest: Path, own: bool) -> str | None:
    """Restore what the run in this directory saved of a ring, unless it is the ring of that run, which was loaded with
    it. Returns the file that has it; None where the checkpoint has it itself."""
    loaded = RunDirectory(newest).load()
    if not own:
        held = Stored(with_rows(loaded.state, loaded.path), "").table()
        rows = held["replay"].table()["ring"] if "replay" in held else Stored(None, "replay")
        ring.check_state(rows)
        ring.restore(rows.value)
    return file_of_rows(loaded.state)


class _SharingDirectory(RunDirectory):
    """The directory of a run whose replay others share: its checkpoints name the files that have the rows."""

    def __init__(self, path: Path, keep: int, replay: SharedReplay):
        super().__init__(path, keep)
        self._replay = replay

    def save(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        """See `RunDirectory`."""
        return super().save(step, self._replay.without_rows(state), meta)

    def save_best(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        """See `RunDirectory`."""
        return super().save_best(step, state if "replay" not in state else self._replay.without_rows(state), meta)


def file_of_rows(state: dict[str, Any]) -> str | None:
    """The file that the checkpoint of a run names in the place of its rows; None where it has them itself, or none.
    CheckpointError for what is no such name."""
    replay = state.get("replay")
    ring = replay.get("ring") if isinstance(replay, dict) else None
    if not isinstance(ring, dict) or "file" not in ring:
        return None
    held = Stored(ring, "replay/ring").fields(("file",))["file"]
    if not _NAME.fullmatch(held.text()):
        held.refuse("the name of a file of shared rows")
    return held.text()


def with_rows(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The state of a run in the checkpoint at `path`, with the rows that it names; without a replay where their files
    are not in the folder of a study around it. CheckpointError where they are damaged."""
    name = file_of_rows(state)
    if name is None:
        return state
    around = path.absolute().parents[:DEEP]
    folder = next((parent / FOLDER for parent in around if (parent / FOLDER / name).is_file()), None)
    if folder is None:
        return {component: value for component, value in state.items() if component != "replay"}
    return {**state, "replay": {**state["replay"], "ring": _read(folder, name)}}


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy the checkpoint of a run; the copy has all rows of its replay itself."""
    if any((parent / FOLDER).is_dir() for parent in source.absolute().parents[:DEEP]):
        checkpoint.write(target, with_rows(checkpoint.read(source), source))
        return
    with source.open("rb") as file, checkpoint.replacing(target) as copy:
        shutil.copyfileobj(file, copy)


def _read(folder: Path, name: str) -> dict[str, Any]:
    """The state of the ring whose newest rows are in this file."""
    names: list[str] = []
    changes: list[dict[str, Any]] = []
    try:
        while name and not (changes and covers(changes)):
            if not _NAME.fullmatch(name) or name in names or not (folder / name).is_file():
                raise CheckpointError(f"{folder} lacks the file {name!r} of a shared replay. Restore it from a copy.")
            state = checkpoint.read_only(folder / name, ("changes", "before"), ())
            names.append(name)
            changes.append(state["changes"])
            name = Stored(state["before"], f"{name}/before").text()
        return ring_state(changes[::-1])
    except MemoryError as error:
        raise CheckpointError(f"The shared replay in {folder} needs more memory than is free.") from error
