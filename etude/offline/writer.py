"""Episodes written while they are collected."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.base.data import LOG_PROB, Episode, Steps
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected, Event, Finished, Saving, Started
from etude.base.spaces import Spaces
from etude.offline.blocks import EpisodeAssembler
from etude.offline.dataset import to_steps
from etude.offline.files import metadata_of, read, remove
from etude.offline.metadata import describe_recording
from etude.offline.recordings import PARTIAL, Recording
from etude.offline.shards import SHARD_FORMATS, ShardFile, ShardWriter, put

SMALLEST, LARGEST = 2**14, 2**22  # bytes of transitions that are written at a time
SHARE = 16  # of a shard
SMALLEST_SHARD = 2**16  # bytes
NOT_RECORDED = ("priority",)  # extras of the learner, not of the behaviour
ABOUT_RUN = (
    "algorithm", "environment", "environment_args", "wrappers", "frame_stack", "config", "functions", "explorer",
    "policies", "learners", "rewrite", "engine",
)  # fmt: skip

IDENTITY = ("algorithm", "environment", "seed")  # in these, runs with the same recording agree


class Writer:
    """Writes the episodes of a run into a folder, as a callback of it, or those that it is given.

        run.train(100_000, [etude.offline.Writer("recorded/")])

    folder: made where it is not there. It gets shards of whole episodes, `NAME-00000.parquet`. Each is written under
        another name and renamed, so that a process that is killed leaves complete shards.
    format: "parquet", "hdf5" (D4RL's columns), "jsonl" (an episode a line), or "minari" (each shard a data set).
    max_bytes: size of a shard, from which the next one begins.
    compression: of Parquet zstd, lz4, snappy, gzip or none; of HDF5 and Minari gzip, lzf or none; of JSON lines none or
        gzip. None takes the first of these.
    columns: names of the extras of steps to write, such as `log_prob`; None: all of them.
    name: begins the names of shards; None: the algorithm and the seed, `ppo-seed1`. A folder may hold several.
    spaces, environment: of what is given to `add` and `write`: the environment's own action space, and its id.

    Where a run is saved, a shard ends, and the open episodes are kept in a hidden file: a run that resumes from a
    checkpoint continues them. Shards with later episodes are renamed to `.superseded`, as the run records them again.
    Raises ConfigError for arguments that cannot be used, DataError where the folder holds a recording of this name.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: str = "parquet",
        *,
        max_bytes: int = 64 * 2**20,
        compression: str | None = None,
        columns: Iterable[str] | None = None,
        name: str | None = None,
        spaces: Spaces | None = None,
        environment: str | None = None,
    ):
        if format not in SHARD_FORMATS:
            raise ConfigError(f"format = {format!r}; expected {', '.join(SHARD_FORMATS)}.")
        self._format = SHARD_FORMATS[format]
        known = self._format.compressions
        if compression is not None and compression not in known:
            raise ConfigError(f"compression = {compression!r}; {format} takes {', '.join(known)}.")
        if not isinstance(max_bytes, int) or max_bytes < SMALLEST_SHARD:
            raise ConfigError(f"max_bytes = {max_bytes!r}; expected a whole number of at least {SMALLEST_SHARD:,}.")
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][-_A-Za-z0-9]*", name):
            raise ConfigError(f"name = {name!r}; expected letters, digits, '-' and '_'.")
        self.folder: Path = Path(folder)
        self._max_bytes, self._name = max_bytes, name
        self._compression = compression or known[0]
        self._suffix = ".jsonl.gz" if (format, compression) == ("jsonl", "gzip") else self._format.suffix
        self._columns = None if columns is None else frozenset(columns)
        self._log_prob = self._columns is None or LOG_PROB in self._columns
        self._block = min(max(SMALLEST, max_bytes // SHARE), LARGEST)
        self._assembler = EpisodeAssembler()
        self._shards: ShardWriter | None = None
        self._step = 0
        self._kept: tuple[int, str] | None = None  # the checkpoint whose open episodes are in a file
        if spaces is not None:
            self.begin(spaces, environment)

    def __call__(self, event: Event) -> None:
        """Record a run by its events."""
        if isinstance(event, Collected):
            self._step = event.step
            if event.episodes and not event.steps:
                raise ConfigError("The workers of this algorithm return gradients; their steps cannot be recorded.")
            for part in event.steps:
                self.add(part)
        elif isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Saving):
            self._checkpoint(event.step, event.kind)
        elif isinstance(event, Finished):
            self._checkpoint(event.step, "last")

    def begin(self, spaces: Spaces, environment: str | None = None, run: dict[str, Any] | None = None) -> None:
        """Begin a recording of an environment with these spaces. run: what else the shards say, as plain data."""
        self._prepare(spaces, environment, run)
        if found := self._recording.shards():
            raise DataError(
                f"{self.folder} holds a recording {self._name!r} already ({found[0].name}). Give another folder, or "
                "another name=."
            )
        self._recording.forget_open(keep=0)
        self._shards = self._shard_writer(0)

    def add(self, steps: Steps) -> None:
        """Record collected steps. Episodes whose first steps were not added are left out."""
        if self._shards is None:
            raise ConfigError("This writer does not know what it records: give it spaces=, or to a run as a callback.")
        columns = self._columns
        kept = {
            name: values
            for name, values in steps.extras.items()
            if (name in columns if columns is not None else name not in NOT_RECORDED)
        }
        if not self._assembler.holds_only(kept):  # collected ahead, before log probabilities were asked for
            self.close()
        self._assembler.add(replace(steps, extras=kept))
        ready = self._assembler.ended_bytes
        if ready >= self._block and ready >= self._assembler.open_bytes / 4:  # open ones are copied
            self._write()

    def write(self, episodes: Iterable[Episode]) -> None:
        """Record whole episodes."""
        for episode in episodes:
            self.add(to_steps([episode]))

    def close(self) -> None:
        """Complete the last shard. Open episodes are dropped. May be called twice."""
        if self._shards is not None:
            self._write()
            self._shards.complete(self._step)
        self._assembler.forget()

    @property
    def incomplete(self) -> int:
        """Episodes that were left out, as their first steps were not seen: a worker was lost, or the run was not
        recorded from their beginning."""
        return self._assembler.incomplete

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _start(self, event: Started) -> None:
        about = event.description
        spaces = None if about.get("steps") == "gradient" else event.spaces
        if spaces is None:
            raise ConfigError("This run learns from recorded data and collects no steps: there is nothing to record.")
        if self._shards is not None and event.step == self._step:
            self._ask(event)
            return  # it goes on where this writer is
        seed = about["setup"]["seed"]
        self._name = self._name or f"{about['algorithm']}-seed{seed}"
        run = {**{name: about[name] for name in ABOUT_RUN if about.get(name) is not None}, "seed": seed}
        environment = about["environment"] if about["environment_is_named"] else None
        if event.step:
            self._resume(event.step, spaces, environment, run)
        else:
            self.begin(spaces, environment, run)
        self._ask(event)

    def _ask(self, event: Started) -> None:
        if self._log_prob:
            event.record_log_prob()

    def _resume(self, step: int, spaces: Spaces, environment: str | None, run: dict[str, Any]) -> None:
        """Continue the recording of a run at this step, or begin to record it."""
        self._prepare(spaces, environment, run)
        if found := self._recording.shards():
            recorded = metadata_of(found[-1]).get("run", {})
            if {name: recorded.get(name) for name in IDENTITY} != {name: run[name] for name in IDENTITY}:
                raise DataError(
                    f"{self.folder} holds a recording {self._name!r} of another run ({found[-1].name}). Give another "
                    "folder, or another name=."
                )
        self._recording.supersede(step)
        self._shards = self._shard_writer(self._recording.next_number())
        self._step, path = step, self._recording.open_at(step)
        if path is not None:
            environments = metadata_of(path)["open"]
            episodes = read(path, spaces).episodes
            self._log_prob &= all(LOG_PROB in episode.extras for episode in episodes)  # goes on as it began
            self._assembler.restore(dict(zip(environments, episodes, strict=True)))

    def _prepare(self, spaces: Spaces, environment: str | None, run: dict[str, Any] | None) -> None:
        self._name = self._name or "episodes"
        about = {**describe_recording(environment, spaces), "recording": self._name}
        self._about = about if run is None else {**about, "run": run}
        self._make = functools.partial(self._new_file, spaces)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The folder {self.folder} cannot be made: {error.strerror}. Give another.") from error
        self._recording = Recording(self.folder, self._name, self._suffix)
        self._assembler.forget()
        self._kept = None

    def _new_file(self, spaces: Spaces, path: Path, about: dict[str, Any]) -> ShardFile:
        return self._format.make(path, spaces, self._compression, about, self._max_bytes)

    def _shard_writer(self, number: int) -> ShardWriter:
        return ShardWriter(self._recording, self._make, self._about, self._max_bytes, number)

    def _write(self) -> None:
        assert self._shards is not None
        if (block := self._assembler.take()) is not None:
            self._shards.append(block, self._step)

    def _checkpoint(self, step: int, kind: str) -> None:
        """Complete the shard, and keep the open episodes for a run that resumes at this step."""
        if self._shards is None or self._kept == (step, kind):
            return
        self._step = step
        self._write()
        self._shards.complete(step)
        block = self._assembler.unfinished()
        if block is not None:
            path = self._recording.open_path(step, kind)
            partial = path.with_name(path.name + PARTIAL)
            remove(partial)
            file = self._make(partial, self._about)
            file.append(block)
            counts = {"episodes": len(block), "transitions": len(block.reward), "step": step}
            file.close({**self._about, **counts, "open": block.environment.tolist()})
            remove(path)
            put(partial, path)
            self._recording.forget_open()
        self._kept = step, kind
