"""What a study costs, and what successive halving saves.

`python benchmarks/tuning.py` writes tuning.json, part by part (`--only asha`, `--only jobs`, `--only overhead`).

asha: PPO on CartPole-v1, nine learning rates from 1e-5 to 1e-1, by a grid that takes all steps, three seeds each, and
by ASHA (reduction 3) with one seed, once for each of three seeds: the steps that it took over those of the grid with
one seed, and the rate that it found over the grid's best, which is the one with the highest mean over seeds.
jobs: steps per second of a grid with one worker process and with two, in turns.
overhead: processor seconds of a study in one process over those of the same runs by themselves, with the same
evaluations, metrics and checkpoints, in turns; `again` is the same runs once more: how far it is from 1 is noise.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude.report import JsonLines
from etude.tuning import ASHA, ProcessExecutor

ENV = "CartPole-v1"
RATES = [float(rate) for rate in np.logspace(-5, -1, 9)]
SEEDS = (1, 2, 3)
PARTS = ("asha", "jobs", "overhead")


def study(folder: Path, rates: list[float], steps: int, **more: Any) -> etude.Study:
    """A grid of learning rates."""
    given = {"engine": "torch", "device": "cpu", "evaluate_every": steps // 9, "evaluate_episodes": 5, **more}
    return etude.Study("ppo", ENV, {"learning_rate": rates}, steps=steps, folder=folder, **given)


@contextlib.contextmanager
def folder():
    """A folder that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="etude-tuning-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def asha(steps: int, jobs: int) -> dict[str, Any]:
    """The rate that ASHA finds, and its steps, against the grid's."""
    with folder() as path, study(path, RATES, steps, seeds=SEEDS, executor=ProcessExecutor(jobs)) as grid:
        ranked = sorted(grid.run(), key=lambda each: -each.score)
        best, one_seed = ranked[0].values["learning_rate"], grid.steps / len(SEEDS)
        scores = {f"{each.values['learning_rate']:.3g}": measure.significant(each.score) for each in ranked}
    found = []
    for seed in SEEDS:
        with folder() as path, study(path, RATES, steps, seeds=(seed,), scheduler=ASHA()) as halving:
            halving.run()
            rate = halving.best.values["learning_rate"]
            found.append(
                {
                    "seed": seed,
                    "found": measure.significant(rate),
                    "factor from the grid's best": measure.significant(math.exp(abs(math.log(rate / best)))),
                    "share of the grid's steps": measure.significant(halving.steps / one_seed),
                }
            )
    return {"steps of a trial": steps, "grid": scores, "grid's best": measure.significant(best), "asha": found}


def jobs(steps: int, repeats: int) -> dict[str, Any]:
    """Steps per second with two worker processes over those with one; the start of the processes included."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for count, found in rates.items():
            with folder() as path, study(path, RATES[2:8], steps, executor=ProcessExecutor(count)) as each:
                began = time.perf_counter()
                each.run()
                found.append(each.steps / (time.perf_counter() - began))
    return {
        "trials": 6,
        "steps of a trial": steps,
        "steps per second": {str(count): measure.summary(found) for count, found in rates.items()},
        "two over one": measure.ratio(rates[2], rates[1]),
    }


def overhead(steps: int, repeats: int) -> dict[str, Any]:
    """Processor seconds of a study over those of its runs."""
    seconds: dict[str, list[float]] = {"runs": [], "again": [], "study": []}
    for turn in range(repeats + 1):
        for name in list(seconds) if turn % 2 else reversed(list(seconds)):
            with folder() as path:
                began = time.process_time()
                if name == "study":
                    with study(path, RATES[3:6], steps) as each:
                        each.run()
                else:
                    runs_alone(path, RATES[3:6], steps)
                if turn:  # the first one warms up
                    seconds[name].append(time.process_time() - began)
    return {
        "trials": 3,
        "steps of a trial": steps,
        "processor seconds of the runs": measure.significant(statistics.median(seconds["runs"])),
        **{name: measure.ratio(seconds[name], seconds["runs"]) for name in ("again", "study")},
    }


def runs_alone(path: Path, rates: list[float], steps: int) -> None:
    """The runs of a study, without one."""
    for i, rate in enumerate(rates):
        where = path / str(i)
        with etude.Run("ppo", ENV, learning_rate=rate, run_dir=where, engine="torch", device="cpu") as run:
            lines = JsonLines(where / "metrics.jsonl")
            run.train(
                steps, [lines], evaluate_every=steps // 9, evaluate_episodes=5, save_every=max(1, steps // 10)
            )  # fmt: skip
            lines.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--steps", type=int, default=45_000, help="of a trial, for asha; a multiple of 9")
    parser.add_argument("--timed", type=int, default=18_000, help="steps of a trial that is timed; a multiple of 9")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="trials of the grid at a time, for asha")
    options = parser.parse_args()
    found = measure.read(__file__)
    for part in options.only:
        if part == "asha":
            found[part] = asha(options.steps, options.jobs)
        else:
            found[part] = (jobs if part == "jobs" else overhead)(options.timed, options.repeats)
        print(part, found[part], flush=True)
        measure.write(__file__, found)


if __name__ == "__main__":
    main()
