"""Is anything lost when processes are killed? `python -m benchmarks.reliability.kills --kills 200 --engine torch`.

A small training, by the command line and with worker processes, is killed with SIGKILL at random moments, half of them
around a save, and resumed, until it has taken all of its steps; then the next one begins. `--worker-share` of the
kills hit a worker, in trainings of their own, as a worker that is replaced begins new episodes.

After the kill of a trainer: its workers end, every checkpoint verifies, and the newest one loads. After its end:
nothing unfinished is left in the directory, and the checkpoints and the metrics equal those of the uninterrupted
training bit for bit. After the kill of a worker: the training says that it was replaced and takes all of its steps.

Adds to kills.json beside this script after every training, up to `--kills` in all; `--again` starts anew. The exit
code is 1 where something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.reliability.processes import Command, outliving, workers_of
from etude import checkpoint
from etude.base.errors import CheckpointError
from etude.checkpoint.run_directory import RunDirectory
from etude.report import read_records

OPTIONS = {
    "steps": 4000, "seed": 3, "envs": 4, "workers": 2, "save-every": 50, "evaluate-every": 500, "evaluate-episodes": 2,
    "set.learning-starts": 100, "set.train-every": 20, "set.gradient-steps": 2, "set.buffer-size": 2000,
    "set.network.widths": 16,
}  # fmt: skip
TRAINING = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
TIMEOUT = 600.0  # seconds for one training
GRACE = 30.0  # seconds in which the workers of a killed trainer have to end
LONGEST_BETWEEN_SAVES = 1.0  # seconds
KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "last": lambda directory: RunDirectory(directory).load().state,
    "best": lambda directory: checkpoint.read(RunDirectory(directory).best),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all, those that kills.json holds included")
    parser.add_argument("--engine", choices=("jax", "tensorflow", "torch"), default="torch")
    parser.add_argument("--worker-share", type=float, default=0.25, help="of the kills that hit a worker")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--again", action="store_true", help="leave out what kills.json holds")
    options = parser.parse_args()
    found = {} if options.again else measure.read(__file__).get(options.engine, {})
    if options.engine == "torch":
        import torch  # noqa: F401  (once, for all forks; the others may not be forked)
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(f"{options.seed} {found}")
        kills = Kills(options.engine, Path(folder), found)
        while kills.count() < options.kills:
            kills.kill_next(rng, options)
            print(kills.found(), flush=True)
            measure.write(__file__, {options.engine: kills.found()})
    sys.exit(1 if kills.wrong else 0)


class Kills:
    """Kills trainings and counts what becomes of them. found: what was counted before."""

    def __init__(self, engine: str, folder: Path, found: dict[str, Any]):
        self._engine, self._folder = engine, folder
        self._counts = Counter({name: count for name, count in found.items() if isinstance(count, int)})
        self.wrong: list[str] = list(found.get("wrong", []))
        began = time.monotonic()
        self._whole = folder / "whole"
        if self._end(self._start(self._whole)) != 0:
            raise RuntimeError(self._output())
        self._seconds = time.monotonic() - began

    def count(self) -> int:
        """How many processes were killed."""
        return self._counts["kills_of_trainers"] + self._counts["kills_of_workers"]

    def found(self) -> dict[str, Any]:
        """The counts, and what was wrong."""
        return {**self._counts, "wrong": self.wrong, "seconds_of_a_training": round(self._seconds, 1)}

    def kill_next(self, rng: random.Random, options: argparse.Namespace) -> None:
        """Kill a worker of a training, or a trainer until it ends by itself or the kills are used up."""
        directory = self._folder / "run"
        shutil.rmtree(directory, ignore_errors=True)
        if self._counts["kills_of_workers"] < options.worker_share * self.count():
            self._kill_worker(directory, rng)
            return
        while self.count() < options.kills and self._kill_trainer(directory, rng):
            pass
        if RunDirectory(directory).saved() and not self._has_ended(directory):
            self._check_end(directory, self._end(self._start(directory)))

    def _start(self, directory: Path) -> Command:
        """Train, or go on where there is a checkpoint to go on from."""
        resumes = directory.exists() and RunDirectory(directory).saved()
        given = ["train", "dqn", "CartPole-v1", *TRAINING, "--engine", self._engine, "--run-dir", str(directory)]
        words = ["resume", str(directory)] if resumes else given
        return Command(words, self._folder / "log")

    def _kill_trainer(self, directory: Path, rng: random.Random) -> bool:
        """Start or resume a training and kill it; returns whether there is something to go on with."""
        command = self._start(directory)
        ended = command.wait(rng.uniform(0.0, 0.8 * self._seconds))
        if ended is None and rng.random() < 0.5:
            ended = self._wait_for_save(command, directory, rng)
        if ended is not None:
            self._check_end(directory, ended)
            return False
        workers = workers_of(command.pid)
        command.kill()
        self._counts["kills_of_trainers"] += 1
        if remaining := outliving(workers, GRACE):
            self._note(f"{len(remaining)} workers outlived their trainer by {GRACE:.0f} s")
        self._check_directory(directory)
        if not self._has_ended(directory):
            return True
        RunDirectory.resume(directory).close()  # removes what is unfinished
        self._check_end(directory, 0)
        return False

    def _wait_for_save(self, command: Command, directory: Path, rng: random.Random) -> int | None:
        """Wait until a checkpoint is being written, and for a few milliseconds more."""
        until = time.monotonic() + LONGEST_BETWEEN_SAVES
        while not any(directory.glob(f"checkpoints/.*{checkpoint.TEMPORARY}")):
            if command.wait(0) is not None or time.monotonic() > until:
                return command.wait(0)
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, 0.01))
        return command.wait(0)

    def _kill_worker(self, directory: Path, rng: random.Random) -> None:
        """Kill a worker once the training collects, if it does not end before."""
        command = self._start(directory)
        while command.wait(0.05) is None and not RunDirectory(directory).saved():
            pass
        workers = workers_of(command.pid) if command.wait(rng.uniform(0.0, self._seconds / 3)) is None else []
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            self._counts["kills_of_workers"] += 1
        code = self._end(command)
        if code != 0 or not self._has_ended(directory):
            self._note(f"a training whose worker was killed ended with {code}: {self._output()}")
        elif workers:
            warnings = [record.get("warning", "") for record in read_records(directory / "metrics.jsonl")]
            self._counts["workers_replaced"] += any("replaced" in warning for warning in warnings)

    @staticmethod
    def _end(command: Command) -> int | None:
        """The exit code at its end; None where it hangs."""
        code = command.wait(TIMEOUT)
        command.kill()
        return code

    @staticmethod
    def _has_ended(directory: Path) -> bool:
        """Whether the last checkpoint holds all steps, no fewer and no more."""
        return max(RunDirectory(directory).saved(), default=0) == OPTIONS["steps"]

    def _check_directory(self, directory: Path) -> None:
        """What a killed trainer left: whole checkpoints, and maybe something unfinished."""
        saved = RunDirectory(directory).saved() if directory.exists() else {}
        self._counts["killed_while_writing"] += bool(unfinished(directory))
        if not saved:
            self._counts["killed_before_the_first_checkpoint"] += 1
            shutil.rmtree(directory, ignore_errors=True)
            return
        for path in saved.values():
            try:
                checkpoint.verify(path)
            except CheckpointError as error:
                self._note(f"torn: {error}")
        if RunDirectory(directory).load().path != saved[max(saved)]:
            self._note(f"the newest checkpoint, {saved[max(saved)].name}, does not load")

    def _check_end(self, directory: Path, code: int | None) -> None:
        """The end of a training that was resumed is that of the uninterrupted one."""
        if code != 0:
            self._note(f"a resumed training ended with {code}: {self._output()}")
            return
        self._counts["trainings_compared"] += 1
        if left := unfinished(directory):
            self._note(f"left behind: {left}")
        if not self._has_ended(directory):
            self._note(f"ended with {list(RunDirectory(directory).saved())}")
        elif differing := different(directory, self._whole):
            self._note(f"differs from the uninterrupted training: {differing}")

    def _note(self, what: str) -> None:
        self.wrong.append(what)
        print(what, flush=True)

    def _output(self) -> str:
        return (self._folder / "log").read_text()[-1000:]


def unfinished(directory: Path) -> list[str]:
    """The names of files that somebody began to write."""
    patterns = (f".*{checkpoint.TEMPORARY}*", "*.partial*", "*.new")
    return sorted({path.name for pattern in patterns for path in directory.rglob(pattern)})


def different(one: Path, other: Path) -> list[str]:
    """What differs between two trainings, but for how long they took."""
    found = []
    for kind, read in KINDS.items():
        states = [read(path) for path in (one, other)]
        for state in states:
            state["progress"].pop("seconds")
        names = [name for name in {**states[0], **states[1]} if name != "description"]
        found += [f"{kind} {name}" for name in names if not same(*(state.get(name) for state in states))]
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
