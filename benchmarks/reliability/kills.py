"""Is anything lost when processes are killed? `python -m benchmarks.reliability.kills --kills 200 --engine torch`.

A small training, by the command line and with worker processes, is killed with SIGKILL at random moments and resumed,
until it has taken all of its steps; then the next one begins. Every `--worker-share`-th kill or so hits a worker, of
trainings of their own, as a worker that is replaced begins new episodes.

After the kill of a trainer: every checkpoint verifies, and the newest one loads. After its end: nothing unfinished is
left in the directory, and the last checkpoint and the metrics equal those of the uninterrupted training bit for bit.
The counts go to kills.json beside this script; the exit code is 1 where something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.reliability.soak import COMMAND, children_of
from etude import checkpoint
from etude.errors import CheckpointError
from etude.report import read_records
from etude.run_directory import RunDirectory

OPTIONS = {
    "steps": 4000, "seed": 3, "envs": 4, "workers": 2, "save-every": 50, "evaluate-every": 500, "evaluate-episodes": 2,
    "set.warmup": 100, "set.learn-every": 20, "set.updates": 2, "set.replay-size": 2000, "set.network.widths": 16,
}  # fmt: skip
TRAINING = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
TIMEOUT = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", choices=("jax", "tensorflow", "torch"), default="torch")
    parser.add_argument("--worker-share", type=float, default=0.2, help="of the kills that hit a worker")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = Kills(options.engine, random.Random(options.seed), Path(folder)).carry_out(options)
    measure.write(__file__, {options.engine: found})
    print(found, flush=True)
    sys.exit(1 if found["wrong"] else 0)


class Kills:
    """Kills trainings and counts what becomes of them."""

    def __init__(self, engine: str, rng: random.Random, folder: Path):
        self._engine, self._rng, self._folder = engine, rng, folder
        self._counts: Counter[str] = Counter()
        self._wrong: list[str] = []
        began = time.monotonic()
        self._whole = folder / "whole"
        if self._start(self._whole).wait(TIMEOUT):
            raise RuntimeError((folder / "log").read_text()[-3000:])
        self._seconds = time.monotonic() - began

    def carry_out(self, options: argparse.Namespace) -> dict[str, Any]:
        """So many kills; the counts, and what was wrong."""
        killed = 0
        while killed < options.kills:
            directory = self._folder / "run"
            shutil.rmtree(directory, ignore_errors=True)
            of_worker = self._rng.random() < options.worker_share
            killed += (
                self._kill_worker(directory) if of_worker else self._kill_trainer(directory, options.kills - killed)
            )
            print(f"{killed} kills, {len(self._wrong)} wrong: {dict(self._counts)}", flush=True)
        return {"kills": killed, **self._counts, "wrong": self._wrong, "seconds_of_a_training": round(self._seconds, 1)}

    def _start(self, directory: Path) -> subprocess.Popen:
        """Train, or go on where there is a checkpoint to go on from."""
        resumes = directory.exists() and RunDirectory(directory).saved()
        given = ["train", "dqn", "CartPole-v1", *TRAINING, "--engine", self._engine, "--run-dir", str(directory)]
        words = ["resume", str(directory)] if resumes else given
        with (self._folder / "log").open("w") as log:
            return subprocess.Popen([*COMMAND, *words], stdout=log, stderr=log)

    def _kill_trainer(self, directory: Path, most: int) -> int:
        """Kill one training again and again until it ends by itself; returns how often."""
        for killed in range(most + 1):
            process = self._start(directory)
            ended = self._wait(process, self._moment() if killed < most else TIMEOUT)
            if ended is not None:
                self._check_end(directory, ended)
                return killed
            process.kill()
            process.wait()
            self._counts["kills_of_trainers"] += 1
            self._check_directory(directory)
            if max(RunDirectory(directory).saved(), default=0) == OPTIONS["steps"]:  # it was only about to end
                RunDirectory.resume(directory).close()
                self._check_end(directory, 0)
                return killed + 1
        return most

    def _kill_worker(self, directory: Path) -> int:
        """Kill a worker once; returns whether one was there."""
        process = self._start(directory)
        workers: list[int] = []
        if self._wait(process, self._moment()) is None:
            workers = children_of(process.pid)
        if workers:
            os.kill(self._rng.choice(workers), signal.SIGKILL)
            self._counts["kills_of_workers"] += 1
        if process.wait(TIMEOUT):
            self._note(f"a training whose worker was killed ended with {process.returncode}: {self._said()}")
        return len(workers[:1])

    def _moment(self) -> float:
        return self._rng.uniform(0.0, self._seconds)

    @staticmethod
    def _wait(process: subprocess.Popen, seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _check_directory(self, directory: Path) -> None:
        """What a killed trainer left: whole checkpoints, and maybe something unfinished."""
        saved = RunDirectory(directory).saved() if directory.exists() else {}
        self._counts["left_unfinished"] += bool(unfinished(directory))
        if not saved:
            self._counts["before_the_first_checkpoint"] += 1
            shutil.rmtree(directory, ignore_errors=True)
            return
        for path in saved.values():
            try:
                checkpoint.verify(path)
            except CheckpointError as error:
                self._note(f"torn: {error}")
        if RunDirectory(directory).load().path != saved[max(saved)]:
            self._note(f"the newest checkpoint, {saved[max(saved)].name}, does not load")

    def _check_end(self, directory: Path, code: int) -> None:
        """The end of a training that was resumed is that of the uninterrupted one."""
        if code:
            self._note(f"a resumed training ended with {code}: {self._said()}")
            return
        self._counts["trainings"] += 1
        if left := unfinished(directory):
            self._note(f"left behind: {left}")
        if differing := different(directory, self._whole):
            self._note(f"differs from the uninterrupted training: {differing}")

    def _note(self, what: str) -> None:
        self._wrong.append(what)
        print(what, flush=True)

    def _said(self) -> str:
        return (self._folder / "log").read_text()[-1000:]


def unfinished(directory: Path) -> list[str]:
    """The names of files that somebody began to write."""
    patterns = (f".*{checkpoint.TEMPORARY}*", "*.partial*", "*.new")
    return sorted({path.name for pattern in patterns for path in directory.rglob(pattern)})


def different(one: Path, other: Path) -> list[str]:
    """What differs between two trainings, but for how long they took."""
    states = [RunDirectory(path).load().state for path in (one, other)]
    for state in states:
        state["progress"].pop("seconds")
    found = [name for name in states[0] if name != "description" and not same(*(state[name] for state in states))]
    return found + ["metrics"] * (measured(one) != measured(other))


def same(a: Any, b: Any) -> bool:
    """Whether two plain trees are equal bit for bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def measured(directory: Path) -> list[dict[str, Any]]:
    """The records of numbers, without the speed."""
    records = read_records(directory / "metrics.jsonl")
    kept = [{key: value for key, value in record.items() if key != "time/fps"} for record in records]
    return [record for record in kept if any("/" in key and key != "saved" for key in record)]


if __name__ == "__main__":
    main()
