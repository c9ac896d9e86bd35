"""Damaged and hostile files of recorded data: each must be refused with DataError within a second of processor time,
300 MB and 2,000 characters, or be read. `python -m benchmarks.reliability.hostile_data [--files N] [--seed N]` writes
hostile_data.json.

Each file is read in a fork of this process. Where what was read is not what was recorded, this is counted: nothing can
tell a file that was damaged in a way that its format does not notice from another recording.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import etude
from benchmarks import measure
from benchmarks.reliability.hostile_files import DAMAGE, HDF5, PARQUET, PATHS, damaged, hostile_hdf5, hostile_parquet
from etude.base import trees
from etude.base.errors import DataError
from etude.offline import Dataset, read, write

MOST_SECONDS, MOST_MB, MOST_CHARACTERS = 1.0, 300.0, 2000
DEADLINE = 20.0  # seconds after which it counts as one that hangs
ROOM = 8 * 2**30  # bytes of address space that reading may take
KINDS = [
    *(("h5", kind) for kind in (*DAMAGE, *HDF5, "metadata", *PATHS)),
    *(("parquet", kind) for kind in (*DAMAGE, *PARQUET, *PATHS)),
    *(("jsonl", kind) for kind in (*DAMAGE[:-1], *PATHS)),  # the last changes sizes that binary formats declare
]


class Outcome(NamedTuple):
    """What became of a file (refused, read or what is wrong) and the cost."""

    found: str
    characters: int  # of the error's message
    message: str  # its beginning
    seconds: float  # of processor time
    megabytes: float  # more resident memory than before


def make(path: Path, good: Path, kind: str, rng: np.random.Generator) -> None:
    """One damaged or hostile file."""
    if kind in PATHS:
        PATHS[kind](path)
    elif kind in DAMAGE:
        path.write_bytes(damaged(good.read_bytes(), kind, rng))
    else:
        shutil.copy(good, path)
        (hostile_hdf5 if path.suffix == ".h5" else hostile_parquet)(path, kind, rng)


def outcome(path: Path, recorded: Dataset) -> Outcome:
    """What reading a file comes to, in a fork of this process."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _read_and_tell(path, recorded, sink)
    os.close(sink)
    until = time.monotonic() + DEADLINE
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.001)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(source, "rb") as file:
        answer = file.read()
    if not ended[0]:
        return Outcome("hangs", 0, "", DEADLINE, 0.0)
    if not answer:
        return Outcome(f"ended with {os.waitstatus_to_exitcode(ended[1])}", 0, "", 0.0, 0.0)
    return Outcome(*pickle.loads(answer))


def _read_and_tell(path: Path, recorded: Dataset, sink: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ROOM,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before, began = _memory("VmRSS"), time.process_time()
    try:
        found, details = ("read", "") if same(read(path), recorded) else ("read, other numbers", "")
    except DataError as error:
        found, details = "refused", str(error)
    except BaseException as error:
        found, details = type(error).__name__, str(error)
    seconds, megabytes = time.process_time() - began, (_memory("VmHWM") - before) / 2**20
    os.write(sink, pickle.dumps((found, len(details), details[:300], seconds, megabytes)))
    os._exit(0)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def same(one: Dataset, other: Dataset) -> bool:
    """Whether two recordings hold the same episodes."""
    return one.spaces == other.spaces and [_plain(each) for each in one.episodes] == [
        _plain(each) for each in other.episodes
    ]


def _plain(episode: Any) -> tuple:
    arrays = [*trees.leaves(episode.observation), episode.action, episode.reward, *episode.extras.values()]
    return episode.terminated, episode.truncated, [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]


def wrong(found: Outcome) -> bool:
    """Whether it is neither refused in time nor read."""
    costly = found.seconds > MOST_SECONDS or found.megabytes > MOST_MB or found.characters > MOST_CHARACTERS
    return costly if found.found == "refused" else not found.found.startswith("read")


def measured(files: int, seed: int, show: bool) -> dict[str, Any]:
    """Counts of outcomes by format and kind, and what was wrong."""
    counts: dict[str, Counter[str]] = {" | ".join(kind): Counter() for kind in KINDS}
    problems, slowest, largest = [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.mkfifo(folder / "pipe")
        recorded = etude.record("Pendulum-v1", episodes=3, seed=1)
        for suffix in ("h5", "parquet", "jsonl"):
            write(folder / f"good.{suffix}", recorded)
            recorded = read(folder / f"good.{suffix}")
        for i in range(files):
            suffix, kind = KINDS[i % len(KINDS)]
            path, rng = folder / f"{i}.{suffix}", np.random.default_rng([seed, i])
            make(path, folder / f"good.{suffix}", kind, rng)
            found = outcome(path, recorded)
            counts[f"{suffix} | {kind}"][found.found] += 1
            if found.found == "refused":
                slowest, largest = max(slowest, found.seconds), max(largest, found.megabytes)
            if show or wrong(found):
                print(f"{i} {suffix} | {kind}: {found}", flush=True)
            if wrong(found):
                problems.append(f"{suffix} | {kind}, file {i}: {found.found}, {found.seconds:.2f} s, "
                                f"{found.megabytes:.0f} MB, {found.characters} characters")  # fmt: skip
            shutil.rmtree(path) if kind == "a folder" else path.unlink(missing_ok=True)
    total = sum(counts.values(), Counter())
    costs = {"most_seconds_to_refuse": round(slowest, 3), "most_mb_to_refuse": round(largest, 1)}
    return {"files": files, "seed": seed, "outcomes": dict(total), **costs, "kinds": counts, "wrong": problems}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20 * len(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print what became of every file")
    given = parser.parse_args()
    result = measured(given.files, given.seed, given.show)
    measure.write(__file__, result)
    print(json.dumps({name: value for name, value in result.items() if name != "kinds"}, indent=1))
    sys.exit(1 if result["wrong"] else 0)
