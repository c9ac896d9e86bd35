"""Episodes written while they are collected, block by block into the shards of a recording; from rollouts, or step by
step from a simulator, a device, or a log, that etude does not step itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.data import LOG_PROB, Episode, Steps
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected, Event, Finished, Saving, Started
from etude.base.spaces import Space, Spaces, describe, parts, storage_dtype, tree_of
from etude.base.trees import Tree
from etude.offline.blocks import EpisodeAssembler, EpisodeBlock
from etude.offline.dataset import Dataset, actions_in, counted_from_zero, outside, to_steps
from etude.offline.files import PARTIAL, Recording, describe_recording, metadata_of, read, remove
from etude.offline.hdf5 import Hdf5Shard
from etude.offline.json_lines import JsonLinesShard
from etude.offline.minari import MinariShard
from etude.offline.parquet import ParquetShard

PARTS = 24  # in which a shard is written at least
LARGEST_EXPANSION = 4  # bytes of a file for each byte in memory: JSON of float32


class _ShardFile(Protocol):
    """A file of one format that is being written."""

    @property
    def size(self) -> int:
        """Bytes so far."""

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes."""

    def close(self, about: dict[str, Any]) -> None:
        """Complete the file. about: all that is known of it, as plain data."""


SHARD_FORMATS: dict[str, tuple[Any, str]] = {  # the class of shards, and how their names end
    "parquet": (ParquetShard, ".parquet"), "hdf5": (Hdf5Shard, ".h5"), "jsonl": (JsonLinesShard, ".jsonl"),
    "minari": (MinariShard, "-v0"),
}  # fmt: skip


class _ShardWriter:
    """Writes blocks of whole episodes; a shard that has reached its size is completed.

    make: a file from (path, what is known before). about: what all shards say of themselves. number: of the first.
    """

    def __init__(
        self,
        recording: Recording,
        make: Callable[[Path, dict[str, Any]], _ShardFile],
        about: dict[str, Any],
        max_bytes: int,
        number: int,
    ):
        self._recording, self._make, self._about, self._max_bytes = recording, make, about, max_bytes
        self._number = number
        self._file: _ShardFile | None = None
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
                if self._file is None:
                    self._file = self._make(self._partial, self._about)
                    self._episodes = self._transitions = 0
                self._file.append(each)
                self._episodes += len(each)
                self._transitions += len(each.reward)
                self._size = self._file.size
                self._row_bytes = self._size / self._transitions
            except OSError:
                self._give_up()
                raise
            if self._size + part / 2 >= self._max_bytes:
                self.complete(step)

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
        self._shard, suffix = SHARD_FORMATS[format]
        known = self._shard.COMPRESSIONS  # the default first
        if compression is not None and compression not in known:
            raise ConfigError(f"compression = {compression!r}; {format} takes {', '.join(known)}.")
        if not isinstance(max_bytes, int) or max_bytes < SMALLEST_SHARD:
            raise ConfigError(f"max_bytes = {max_bytes!r}; expected a whole number of at least {SMALLEST_SHARD:,}.")
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][-_A-Za-z0-9]*", name):
            raise ConfigError(f"name = {name!r}; expected letters, digits, '-' and '_'.")
        self.folder: Path = Path(folder)
        self._max_bytes, self._name = max_bytes, name
        self._compression = compression or known[0]
        self._suffix = ".jsonl.gz" if (format, compression) == ("jsonl", "gzip") else suffix
        self._columns = None if columns is None else frozenset(columns)
        self._log_prob = self._columns is None or LOG_PROB in self._columns
        self._block = min(max(SMALLEST, max_bytes // SHARE), LARGEST)
        self._assembler = EpisodeAssembler()
        self._shards: _ShardWriter | None = None
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
            about = event.description
            spaces = None if about.get("steps") == "gradient" else event.spaces
            if spaces is None:
                raise ConfigError(
                    "This run learns from recorded data and collects no steps: there is nothing to record."
                )
            if self._shards is None or event.step != self._step:  # else it goes on where this writer is
                seed = about["setup"]["seed"]
                self._name = self._name or f"{about['algorithm']}-seed{seed}"
                run = {**{name: about[name] for name in ABOUT_RUN if about.get(name) is not None}, "seed": seed}
                environment = about["environment"] if about["environment_is_named"] else None
                if event.step:
                    self._resume(event.step, spaces, environment, run)
                else:
                    self.begin(spaces, environment, run)
            if self._log_prob:
                event.record_log_prob()
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
        sized = {"size": self._max_bytes} if self._shard is Hdf5Shard else {}  # others write alike, whatever the size
        self._make = lambda path, about: self._shard(path, spaces, self._compression, about, **sized)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The folder {self.folder} cannot be made: {error.strerror}. Give another.") from error
        self._recording = Recording(self.folder, self._name, self._suffix)
        self._assembler.forget()
        self._kept = None

    def _shard_writer(self, number: int) -> _ShardWriter:
        return _ShardWriter(self._recording, self._make, self._about, self._max_bytes, number)

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


class Builder:
    """Takes one step at a time, in the values of the environment's own spaces.

        builder.add(observation, action, reward, log_prob=-0.7)
        builder.end(final_observation, terminated=True)

    spaces: those of the environment: `Spaces(observation_space, action_space)`. environment: its id, for files.
    output: writes episodes as they end; None keeps them for `dataset`.
    """

    def __init__(self, spaces: Spaces, environment: str | None = None, output: Writer | None = None):
        self.source: Spaces = spaces
        self._environment, self._output = environment, output
        self._open: dict[Hashable, list[tuple[Tree, np.ndarray, np.float32, dict[str, np.ndarray]]]] = {}
        self._names: frozenset[str] | None = None  # of extras
        self._episodes: list[Episode] = []
        if output is not None:
            output.begin(spaces, environment)

    def add(self, observation: Any, action: Any, reward: Any, *, episode: Hashable = None, **extras: Any) -> None:
        """One step: what was observed, what was done then, and the reward that followed.

        episode: which one, where several go on at a time. extras: numbers or arrays of the step, such as the
            `log_prob` of the action, by the same names in every step.
        Raises DataError for values that do not belong to the spaces, and has then added nothing.
        """
        seen = _observed(self.source.observation, observation, "observation")
        own = _leaves(self.source.action, action, "action")
        if any(outside(leaf, value[None]).any() for _, leaf, value in own):
            raise DataError(f"action = {action!r}; expected a value of {self.source.action}.")
        earned = np.asarray(reward)
        if earned.ndim or earned.dtype.kind not in "biuf" or not np.isfinite(np.float32(earned)):
            raise DataError(f"reward = {reward!r}; expected a finite number.")
        names = frozenset(extras)
        if self._names is not None and names != self._names:
            raise DataError(f"A step with the extras {sorted(names)}; expected {sorted(self._names)}, as before.")
        kept = {name: np.asarray(value) for name, value in extras.items()}
        if wrong := [name for name, value in kept.items() if value.dtype.kind not in "biuf"]:
            raise DataError(f"{wrong[0]} = {extras[wrong[0]]!r}; expected a number or an array of numbers.")
        self._names = names
        done = actions_in(self.source.action, [value[None] for _, _, value in own])[0]
        self._open.setdefault(episode, []).append((seen, done, np.float32(earned), kept))

    def end(
        self, observation: Any, *, terminated: bool = False, truncated: bool = False, episode: Hashable = None
    ) -> None:
        """End an episode with its final observation. terminated: nothing follows, and nothing is bootstrapped: the
        observation may be None, as in a log of decisions, and the last one stands for it. truncated: it was cut off.
        One of them is true.

        Raises DataError where the observation does not belong to its space, or there are no steps.
        """
        if bool(terminated) == bool(truncated):
            raise ConfigError("An episode ends with terminated=True or with truncated=True, and not with both.")
        known = observation is not None or truncated
        final = _observed(self.source.observation, observation, "observation") if known else None
        if episode not in self._open:
            raise DataError(f"The episode {episode!r} has no steps to end; expected add before end.")
        steps = self._open.pop(episode)
        final = final if known else steps[-1][0]
        built = Episode(
            observation=trees.stack([*(step[0] for step in steps), final]),
            action=np.stack([step[1] for step in steps]),
            reward=np.array([step[2] for step in steps], np.float32),
            terminated=bool(terminated),
            truncated=bool(truncated),
            extras={name: _column([step[3][name] for step in steps], name) for name in sorted(self._names or ())},
        )
        if self._output is None:
            self._episodes.append(built)
        else:
            self._output.write([built])

    def drop(self, episode: Hashable = None) -> None:
        """Forget an open episode."""
        self._open.pop(episode, None)

    def dataset(self) -> Dataset:
        """The episodes that have ended, for `offline.write` or a run's `data=`."""
        return Dataset(tuple(self._episodes), self.source, self._environment)


def _column(values: list[np.ndarray], name: str) -> np.ndarray:
    if any(value.shape != values[0].shape for value in values):
        raise DataError(f"{name} has several shapes in an episode, which is dropped; expected {values[0].shape}.")
    column = np.stack(values)
    return column.astype(np.float32) if column.dtype == np.float64 else column


def _observed(space: Space, value: Any, where: str) -> Tree:
    """An observation as agents see it."""
    found = []
    for name, leaf, own in _leaves(space, value, where):
        if own.dtype.kind != "f" and outside(leaf, own[None]).any():
            raise DataError(f"{name} = {own.tolist()}; expected a value of {leaf}.")
        found.append(counted_from_zero(leaf, own[None])[0])
    return tree_of(space, iter(found))


def _leaves(space: Space, value: Any, where: str) -> list[tuple[str, Space, np.ndarray]]:
    """The leaves of a space with their names, and what they are in a value of it."""
    inner = parts(space)
    if not inner:
        found, kind = np.asarray(value), storage_dtype(space)
        allowed = "biuf" if kind.kind == "f" else "biu"
        if found.shape != (space.shape or ()) or found.dtype.kind not in allowed or not np.isfinite(found).all():
            raise DataError(f"{where} = {value!r:.200}; expected finite numbers of {describe(space)}.")
        return [(where, space, found)]
    named = isinstance(inner[0][0], str)
    if not isinstance(value, dict if named else tuple) or len(value) != len(inner):
        raise DataError(f"{where} is {value!r:.200}; expected {describe(space)}.")
    if named and set(value) != {key for key, _ in inner}:
        raise DataError(f"{where} has the keys {sorted(map(str, value))}; expected {describe(space)}.")
    return [leaf for key, part in inner for leaf in _leaves(part, value[key], f"{where}[{key!r}]")]
