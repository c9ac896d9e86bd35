"""The directory of a run: where everything about it is, and which of its checkpoints can be trusted.

config.json                          what was asked for
metrics.jsonl                        what was measured
checkpoints/step_000050000.etude     the last few, from any of which the run continues
checkpoints/best.etude               the agent with the highest evaluated return
tensorboard/NAME/  curve.png  video/
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import etude.checkpoint as checkpoint
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError, UntrustedError, needing
from etude.base.stacks import answer_requests
from etude.checkpoint import plain
from etude.checkpoint.old_names import present_config

ROOT = Path("runs")  # where runs go whose directory is not given
_STEP = re.compile(r"step_(\d+)\.etude")


class Loaded(NamedTuple):
    """The state of a run, where it came from, and why newer checkpoints were passed over."""

    state: dict[str, Any]
    path: Path
    notes: list[str]


METRICS = "metrics.jsonl"
KINDS = {METRICS: "run", "study.jsonl": "study", "sweep.json": "sweep"}  # by the file that makes a folder one


def check_kind(folder: Path, kind: str) -> None:
    """Raise ConfigError where a folder is that of something else than a `kind`, and would hold both."""
    if others := [other for name, other in KINDS.items() if other != kind and (folder / name).exists()]:
        raise ConfigError(f"{folder} is the folder of a {others[0]}. Give the {kind} one of its own.")


class RunDirectory:
    """One run on disk. `RunDirectory(path)` only looks; `create` and `resume` take the lock that writing needs.

    keep: how many of the last checkpoints stay.
    notes: what the user should know about opening it.
    """

    def __init__(self, path: Path | str, keep: int = 3):
        if keep < 1:
            raise ConfigError(f"keep = {keep}; expected at least 1 checkpoint to be kept.")
        self.path: Path = Path(path)
        self.keep: int = keep
        self.notes: list[str] = list[str]()
        self.config: Path = self.path / "config.json"
        self.metrics: Path = self.path / METRICS
        self.curve: Path = self.path / "curve.png"
        self.checkpoints: Path = self.path / "checkpoints"
        self.video: Path = self.path / "video"
        events = self.path / "tensorboard"
        # TensorBoard calls what it shows as folders are called: runs are told apart below any folder that it is given.
        self.tensorboard: Path = events if any(events.glob("events.*")) else events / self.path.absolute().name
        self.best: Path = self.checkpoints / "best.etude"
        self._lock: checkpoint.Lock | None = None

    @classmethod
    def create(cls, path: Path | str | None, name: str, keep: int = 3) -> RunDirectory:
        """A directory for a new run; `runs/NAME-1`, or the next number that is free, where no path is given.

        ConfigError where it holds a run already, another process writes to it, or it cannot be made.
        """
        try:
            directory = cls(numbered(ROOT, name) if path is None else path, keep)
            check_kind(directory.path, "run")
            directory.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = ROOT if path is None else path
            raise ConfigError(
                f"The run directory {where} cannot be made: {error.strerror or error}. Give "
                "another one: run_dir= (--run-dir)."
            ) from error
        try:
            directory.lock()
            directory._refuse_to_start_over()
        except ConfigError:
            directory.close()
            raise
        return directory

    @classmethod
    def resume(cls, path: Path | str, keep: int = 3, trust: bool = False) -> RunDirectory:
        """The directory of a run that is to go on. What interrupted saves left behind is removed.

        trust: write through links in it to other places, too; else UntrustedError.
        CheckpointError where there is no run, ConfigError where another process writes to it.
        """
        directory = cls(path, keep)
        if not trust:
            for folder in (directory.checkpoints, directory.path / "tensorboard", directory.tensorboard):
                if folder.is_symlink():
                    raise UntrustedError(f"{folder} is a link: the run would write to {str(folder.resolve())!r}.", {})
        if not directory.saved() and not directory.best.exists():
            raise CheckpointError(
                f"There is no run to resume in {path}: it has no checkpoints. Start one: etude train."
            )
        directory.lock()
        return directory

    def lock(self) -> None:
        """Let no other process write to the directory, until `close`, and remove what killed ones left unfinished.

        ConfigError where another one writes to it. May be called twice.
        """
        self._check_own()
        if self._lock is not None:
            return
        path = self.path / ".lock"
        try:
            self._lock = checkpoint.Lock(path)
        except checkpoint.Locked as error:
            raise ConfigError(
                f"Another run is writing to {self.path} ({error}). Wait until it has ended, or give another directory: "
                "run_dir= (--run-dir)."
            ) from error
        except OSError as error:
            if path.is_symlink():
                raise ConfigError(f"{path} is a symbolic link, and would be written through. Remove it.") from error
            raise ConfigError(f"The run directory {self.path} cannot be written to: {error.strerror}.") from error
        answer_requests()  # of `etude stacks`, which finds this process by the lock
        if not self._lock.held:
            self.notes.append(
                f"{self.path} is on a file system without locks: take care that no second run writes there."
            )
            return  # what looks left behind may be another run's
        folders = (self.path, self.checkpoints, self.video)
        for litter in [path for folder in folders for path in folder.glob(f".*{checkpoint.TEMPORARY}")]:
            with suppress(OSError):
                litter.unlink()
                self.notes.append(f"Removed {litter.name}, left behind by a save that was interrupted.")

    def _check_own(self) -> None:
        """Raise ConfigError where a process that this one was forked from writes to the directory."""
        if self._lock is not None and self._lock.process != os.getpid():
            raise ConfigError(
                f"Process {self._lock.process}, which this one was forked from, writes to {self.path}. In a fork, make "
                "a run with a directory of its own, or load one: etude.load(path)."
            )

    def _refuse_to_start_over(self) -> None:
        saved = self.saved()
        if saved or self.best.exists():
            step = f", saved up to step {max(saved)}" if saved else ""
            raise ConfigError(
                f"{self.path} holds a run already{step}. Continue it: etude.resume({str(self.path)!r}) or `etude "
                f"resume {str(self.path)!r}`. Or give the new run a directory of its own: run_dir= (--run-dir)."
            )
        if self.metrics.exists() and self.metrics.stat().st_size:
            raise ConfigError(
                f"{self.path} holds the metrics of a run that ended before its first checkpoint, and a new run would "
                "mix its own with them. Delete it, or give the new run a directory of its own: run_dir= (--run-dir)."
            )

    def close(self) -> None:
        """Let others write to the directory. May be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def saved(self) -> dict[int, Path]:
        """The checkpoints that are there by step, oldest first, whether they verify or not; without `best`."""
        found = ((_STEP.fullmatch(path.name), path) for path in self.checkpoints.glob("step_*.etude"))
        return dict(sorted((int(match[1]), path) for match, path in found if match))

    def load(self, expect: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> Loaded:
        """The state in the newest complete checkpoint; `expect` and `skip` as in `checkpoint.read`.

        CheckpointError where no checkpoint is complete, or the newest complete one lacks a component.
        """
        notes: list[str] = []
        for path in reversed(self.saved().values()):
            try:
                return Loaded(checkpoint.read_only(path, expect, skip), path, notes)
            except checkpoint.Damaged as error:
                notes.append(str(error))
        if not notes:
            raise CheckpointError(f"There are no checkpoints in {self.path}. Give the directory of a run: runs/...")
        with suppress(CheckpointError):
            checkpoint.verify(self.best)
            notes.append(f"The best agent, {self.best}, is complete: give that path.")
        raise CheckpointError(f"No checkpoint in {self.path} can be continued from. {' '.join(notes)}")

    def save(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        """Save the run as it is at `step`, then remove all but the last `keep` checkpoints.

        Checkpoints of later steps are removed too: they are damaged ones that `load` passed over, or belong to a
        continuation that was given up for this one. CheckpointError where it cannot be saved; nothing is removed then.
        """
        self._check_own()
        path = self.checkpoints / f"step_{step:09d}.etude"
        checkpoint.write(path, state, {"step": step, **(meta or {})})
        # This one is on the disk, complete, so whatever is removed now was not the last complete one.
        saved = self.saved()
        past = [other for other_step, other in saved.items() if other_step <= step]
        later = [other for other_step, other in saved.items() if other_step > step]
        checkpoint.discard([*past[: -self.keep], *later])  # the next save tries again
        return path

    def save_best(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        """Save the best agent so far in the place of the one before."""
        self._check_own()
        checkpoint.write(self.best, state, {"step": step, **(meta or {})})
        return self.best

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json`. CheckpointError where that fails."""
        try:
            with checkpoint.replacing(self.config) as file:
                file.write(json.dumps(config, indent=2, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise CheckpointError(f"{self.config} could not be written: {error.strerror or error}.") from error

    def read_config(self) -> dict[str, Any]:
        """What `config.json` says. CheckpointError where it is missing or broken."""
        try:
            return present_config(plain.read_object(self.config))
        except OSError as error:
            raise CheckpointError(f"{self.path} is not the directory of a run: it has no config.json.") from error
        except ValueError as error:
            raise CheckpointError(f"{self.config} is not the config of a run: {error}.") from error


def is_path(run_dir: Any) -> bool:
    """Whether it is the path of a run directory to make; ConfigError where it is nothing that a run can write to."""
    if run_dir is None or isinstance(run_dir, RunDirectory):
        return False
    if isinstance(run_dir, str | os.PathLike) and os.fspath(run_dir):
        return True
    raise ConfigError(f"run_dir = {run_dir!r}; expected the path of a new directory, a RunDirectory, or None.")


def read_run(path: Path, expect: tuple[str, ...], skip: tuple[str, ...] = (), best: bool = False) -> Loaded:
    """The state of a run in a checkpoint file, or in the newest complete checkpoint of a run directory, or its best;
    `expect` and `skip` as in `checkpoint.read`. path: may be `hub:OWNER/NAME`. CheckpointError where there is none."""
    path = from_hub(path)
    if path.is_file():
        if "agent" in checkpoint.inspect(path).components:
            raise _own_agent(path)
        return Loaded(checkpoint.read(path, expect, skip), path, [])
    if not path.is_dir():
        raise CheckpointError(f"There is no run at {path}. Give a run directory, or a checkpoint file (*.etude).")
    directory = RunDirectory(path)
    if best:
        return Loaded(checkpoint.read(directory.best, expect, skip), directory.best, [])
    return directory.load(expect, skip)


def _own_agent(path: Path) -> CheckpointError:
    """Why the file of an agent of one's own is no run, and what to do with it."""
    held = Stored(checkpoint.read(path, skip=("training",)), "").table()["agent"].table()
    name = held["class"].text()[:60] if "class" in held else "Agent"
    return CheckpointError(
        f"{path} holds an agent of one's own, of the class {name}, and no code. Make one and restore it: agent = "
        f"{name}(); agent.restore({str(path)!r}). It goes on with agent.set(...) and agent.train(...) (etude evaluate "
        f"and etude watch take {path} --agent FILE.py:{name})."
    )


def numbered(root: Path, name: str) -> Path:
    """Make the first of `root/NAME-1`, `root/NAME-2`, ... that does not exist."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    number = 1
    while True:
        path = root / f"{safe}-{number}"
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1


BEGINNING = "hub:"
_NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
FILES = ["config.json", "checkpoints/*.etude"]


def from_hub(path: Path) -> Path:
    """The run directory that `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION` stands for, in the cache of huggingface_hub;
    other paths as they are. Raises CheckpointError where it cannot be had."""
    given = path.as_posix()
    if not given.startswith(BEGINNING) or path.exists():
        return path
    found = _NAME.fullmatch(given)
    if found is None:
        raise ConfigError(f"{given!r} names nothing on the hub; expected hub:OWNER/NAME, or hub:OWNER/NAME@REVISION.")
    with needing(f"Loading {given}", "hub"):
        import huggingface_hub
    try:
        return Path(huggingface_hub.snapshot_download(found[1], revision=found[2], allow_patterns=FILES))
    except Exception as problem:  # of whatever class: of HTTP, of the system, of names
        reason = str(problem).strip().split("\n")[0] or type(problem).__name__
        raise CheckpointError(f"{given} cannot be had from the hub: {reason[:300]}") from problem
