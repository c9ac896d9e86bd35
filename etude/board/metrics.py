"""A `metrics.jsonl` that is read as it grows, by offset: its ends for the table, its numbers by name for curves."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

ENDS = 32 * 2**10  # bytes at each end that are read first
PIECE = 4 * 2**20  # bytes that are read at a time, and of the longest line
SAMPLES = 100  # records of a file that is not read yet
KEPT = 2  # metrics whose numbers stay in memory
NAMES = 1_000  # of metrics
WARNINGS = 200  # that are kept of a run
_STEP, _WARNING = b'{"step": ', b'"warning": '

Numbers = dict[str, tuple["array[float]", "array[float]"]]  # (steps, values) by name, as they were recorded
Columns = dict[str, tuple[np.ndarray, np.ndarray]]  # the same by steps, of each the first


class Unreadable(Exception):
    """A file that is not what its name says; the message says why."""


class MetricsFile:
    """What a `metrics.jsonl` holds. Only whole lines are read, each once, however long the file grows.

    fault: why lines were left out, or the file cannot be read; "" where all is well. started: the newest description of
    the run. latest: the newest number of each name. finished: the reason of the record at the end, where there is one.
    """

    def __init__(self, path: Path):
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.fault, self.written, self.step = "", 0.0, 0
        self.started: dict[str, Any] = {}
        self.latest: dict[str, float] = {}
        self.finished: str | None = None
        self.warnings: list[tuple[int, str]] = []
        self._scanned = 0  # up to where `warnings` are
        self._node, self._size = 0, 0
        self._read = 0  # up to where `latest` is known
        self._gathered: dict[tuple[str, ...], _Gathered] = {}  # of the names that were asked for last

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        try:
            about = os.stat(self.path, follow_symlinks=False)
            if (about.st_ino, about.st_size) == (self._node, self._size):
                return False
            if about.st_ino != self._node or about.st_size < self._size:  # a resumed run has written it anew
                self._forget()
            self._node, self._size, self.written = about.st_ino, about.st_size, about.st_mtime
            with self._opened() as descriptor:
                self._read_ends(descriptor)
        except (OSError, Unreadable) as problem:
            self.fault = f"{self.path.name}: {getattr(problem, 'strerror', None) or problem}"
        return True

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = opened(self.path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _read_ends(self, descriptor: int) -> None:
        """The first lines, the last ones, and from then on all."""
        if self._read == 0:
            head = os.pread(descriptor, ENDS, 0)
            if b"\n" not in head and self._size > ENDS:
                head = os.pread(descriptor, PIECE, 0)
                if b"\n" not in head:
                    raise Unreadable(f"its first line has more than {len(head):,} bytes")
            self._read = head.rfind(b"\n") + 1
            self._take(head[: self._read])
            if self._size - self._read > 2 * ENDS:  # what is between them has no part in the table
                place = self._size - ENDS
                last = os.pread(descriptor, ENDS, place)
                self._read = place + last.find(b"\n") + 1
        while data := self._piece(descriptor, self._read, self._size):
            self._take(data)
            self._read += len(data)

    def _piece(self, descriptor: int, start: int, end: int) -> bytes:
        """The whole lines from here on, or as many as are read at a time."""
        data = os.pread(descriptor, min(PIECE, end - start), start)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == PIECE:
            raise Unreadable(f"it has a line of more than {PIECE:,} bytes")
        return data[:whole]

    def _take(self, data: bytes) -> None:
        for line in data.split(b"\n")[:-1]:
            record = self._record(line)
            if record is None:
                continue
            self.step, self.finished = record["step"], None
            if isinstance(record.get("started"), dict):
                self.started = record["started"]
            elif "finished" in record:
                self.finished = str(record["finished"])
            for name, value in record.items():
                if "/" in name and _is_number(value) and (name in self.latest or len(self.latest) < NAMES):
                    self.latest[name] = float(value)

    def _record(self, line: bytes) -> dict[str, Any] | None:
        """The record in a line; None where it holds none, which `fault` says."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and _is_number(record.get("step")):
            record["step"] = int(record["step"])
            return record
        self.fault = f"{self.path.name}: a line is no record: {line[:40].decode(errors='replace')!r}"
        return None

    # -- curves --------------------------------------------------------------------------------------------------------

    def columns(self, names: tuple[str, ...], until: float) -> tuple[Columns, bool]:
        """The numbers of each name, and whether they are all that there are: at the time `until` (of
        `time.thread_time`) reading ends, and a sample is returned of a file that is not read to its end."""
        own = self._gathered.pop(names, None) or _Gathered(names)
        self._gathered[names] = own  # the last one
        if len(self._gathered) > KEPT:
            del self._gathered[next(iter(self._gathered))]
        numbers, complete = own.numbers, True
        with suppress(OSError, Unreadable), self._opened() as descriptor:  # `poll` finds the same
            while time.thread_time() < until and (data := self._piece(descriptor, own.end, self._read)):
                _extract(data.split(b"\n"), numbers)
                own.end += len(data)
            complete = own.end >= self._read
            own.sample = None if complete else own.sample or self._sample(descriptor, names)
            numbers = own.sample or numbers
        return {name: _sorted(*numbers[name]) for name in names}, complete

    def find_warnings(self, until: float) -> bool:
        """Gather the warnings, until a time as above; whether all are there."""
        try:
            with self._opened() as descriptor:
                while time.thread_time() < until and (data := self._piece(descriptor, self._scanned, self._read)):
                    place = data.find(_WARNING)
                    while place >= 0:
                        start, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
                        record = self._record(data[start:end])
                        if record is not None and "warning" in record:
                            self.warnings = [*self.warnings, (record["step"], str(record["warning"]))][-WARNINGS:]
                        place = data.find(_WARNING, end)
                    self._scanned += len(data)
        except (OSError, Unreadable):
            return True
        return self._scanned >= self._read

    def _sample(self, descriptor: int, names: tuple[str, ...]) -> Numbers:
        """Of records at even distances."""
        found, lines = _Gathered(names).numbers, []
        for place in range(0, self._size, max(1, self._size // SAMPLES)):
            lines += os.pread(descriptor, 2048, place).split(b"\n", 3)[1:2]
        _extract(lines, found)
        return found


class _Gathered:
    """The numbers of some names, up to an offset."""

    def __init__(self, names: tuple[str, ...]):
        self.numbers: Numbers = {name: (array("d"), array("f")) for name in names}
        self.end = 0
        self.sample: Numbers | None = None  # while there is more than was read


def opened(path: Path) -> int:
    """A descriptor of a regular file, which is no link. Raises OSError and Unreadable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable("it is no regular file")
    return descriptor


def _extract(lines: Iterable[bytes], into: Numbers) -> None:
    """Add the numbers of these names. Parsing JSON whole would take ten times as long; what `JsonLines` writes needs
    no more than this: a name in a text has its quotation marks escaped."""
    keys = [(f'"{name}": '.encode(), *into[name]) for name in into]
    for line in lines:
        if not line.startswith(_STEP):
            _extract_slowly(line, into)
            continue
        for key, steps, values in keys:
            _, there, rest = line.partition(key)
            if there:
                try:
                    value = float(rest[:32].replace(b"}", b",").partition(b",")[0])
                    step = float(line[len(_STEP) : line.index(b",")])
                except ValueError:  # null, where there was no number; a list; a line that was cut off
                    continue
                steps.append(step)
                values.append(value)


def _extract_slowly(line: bytes, into: Numbers) -> None:
    """Of lines that another program wrote."""
    try:
        record = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        return
    if isinstance(record, dict) and _is_number(record.get("step")):
        for name, (steps, values) in into.items():
            if _is_number(record.get(name)):
                steps.append(float(record["step"]))
                values.append(float(record[name]))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _sorted(steps: array[float], values: array[float]) -> tuple[np.ndarray, np.ndarray]:
    """By steps, one value of each: what was recorded first of it."""
    unique, first = np.unique(np.array(steps), return_index=True)
    found = np.array(values)[first]
    finite = np.isfinite(found)
    return unique[finite], found[finite]
