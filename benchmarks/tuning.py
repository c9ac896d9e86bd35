"""What a study costs, and what successive halving saves.

`python benchmarks/tuning.py` writes tuning.json, part by part (`--only asha`, `--only jobs`, `--only overhead`).

asha: PPO on CartPole-v1, nine learning rates from 1e-5 to 1e-1, by a grid that takes all steps, and by ASHA (reduction
3), with one seed for each configuration, once for each of nine seeds, and with three: the steps that it took over those
of the grid, and the rate that it found over the grid's best, which is the one with the highest mean return over the
same seeds at the end; of equally good ones, as 500 is the highest there is, the nearest.
jobs: steps per second of a grid with one worker process and with two, in turns.
overhead: processor seconds of a study in this process that are not spent in `run.steps`, over those that are; of one
whose trials are carried out one after the other, and of one whose trials take turns, in segments. The making of runs is
among them, so that this is more than what a study adds to its runs; the engine is imported before.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude.tuning import ASHA, ProcessExecutor
from etude.tuning.trial import Go, New

ENV = "CartPole-v1"
RATES = [float(rate) for rate in np.logspace(-5, -1, 9)]
SEEDS = tuple(range(1, 10))
GROUPS = (*((seed,) for seed in SEEDS), *(SEEDS[i : i + 3] for i in range(0, len(SEEDS), 3)))  # of a study by ASHA
PARTS = ("asha", "jobs", "overhead")
TIMED, SEGMENTS = RATES[3:6], 9  # of the trials whose overhead is measured
ENGINES = ("torch", "jax")
KINDS = ("one after the other", "in segments")


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
        grid.run()
        trials, one_seed = grid.trials, grid.steps / len(SEEDS)
    returns: dict[float, dict[int, float]] = {rate: {} for rate in RATES}  # by rate and seed
    for trial in trials:
        returns[trial.genome.config.learning_rate][trial.genome.seed] = trial.score()
    found = []
    for seeds in GROUPS:
        means = {rate: statistics.fmean(own[seed] for seed in seeds) for rate, own in returns.items()}
        best = [rate for rate in RATES if means[rate] == max(means.values())]
        with folder() as path, study(path, RATES, steps, seeds=seeds, scheduler=ASHA()) as halving:
            halving.run()
            rate = halving.best.values["learning_rate"]
        factor = min(math.exp(abs(math.log(rate / each))) for each in best)
        found.append({
            "seeds": seeds,
            "found": measure.significant(rate),
            "grid's best": [measure.significant(each) for each in best],
            "factor from the grid's best": measure.significant(factor),
            "share of the grid's steps": measure.significant(halving.steps / (one_seed * len(seeds))),
        })  # fmt: skip
    grid_returns = {f"{rate:.3g}": [measure.significant(own[seed]) for seed in SEEDS] for rate, own in returns.items()}
    return {"steps of a trial": steps, "returns of the grid": grid_returns, "asha": found}


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
    """The share of a study that its runs do not take, by engine and kind, each study in a process of its own."""
    shares: dict[str, dict[str, list[float]]] = {engine: {kind: [] for kind in KINDS} for engine in ENGINES}
    for _ in range(repeats):
        for engine, own in shares.items():
            for kind, found in own.items():
                found.append(measure.cell("tuning.py", f"{kind}/{engine}/{steps}")["share"])
    about = {"trials": len(TIMED), "steps of a trial": steps, "segments of a trial": SEGMENTS}
    return about | {
        engine: {kind: measure.summary(found) for kind, found in own.items()} for engine, own in shares.items()
    }


def share_outside(kind: str, engine: str, steps: int) -> dict[str, Any]:
    """Processor seconds of a study outside of `run.steps` over those inside."""
    inside = 0.0

    def timed(run: Any, steps: int, **schedule: Any) -> Iterator[Any]:
        nonlocal inside
        events, began = run.steps(steps, **schedule), time.process_time()
        for event in events:
            inside += time.process_time() - began
            yield event
            began = time.process_time()
        inside += time.process_time() - began

    with etude.Run("ppo", ENV, engine=engine, execution=etude.Execution(device="cpu")) as warm:
        warm.train(1)
    scheduler = InSegments(steps // SEGMENTS) if kind == "in segments" else None
    with folder() as path, study(path, TIMED, steps, engine=engine, train=timed, scheduler=scheduler) as each:
        began = time.process_time()
        each.run()
        whole = time.process_time() - began
    return {"share": (whole - inside) / inside}


@dataclass(frozen=True)
class InSegments:
    """Takes all trials `every` steps on, one after the other, again and again."""

    every: int

    def check(self, state: Any) -> None:
        """It can be used for every study."""

    def decide(self, state: Any) -> list[Any]:
        """See `Scheduler`."""
        if state.unproposed:
            return [New(self.every)]
        resting = [trial for trial in state.trials if trial.rests]
        return [Go(trial.number, trial.until + self.every) for trial in resting]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--steps", type=int, default=45_000, help="of a trial, for asha and overhead; a multiple of 9")
    parser.add_argument("--timed", type=int, default=90_000, help="steps of a trial, for jobs; a multiple of 9")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="trials of the grid at a time, for asha")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        kind, engine, steps = options.cell.split("/")
        measure.answer(share_outside(kind, engine, int(steps)))
        return
    found = measure.read(__file__)

    def keep(part: str, result: dict[str, Any]) -> None:
        print(part, result, flush=True)
        measure.write(__file__, found | {part: result})
        found[part] = result

    for part in options.only:
        if part == "asha":
            keep(part, asha(options.steps, options.jobs))
        elif part == "jobs":
            keep(part, jobs(options.timed, options.repeats))
        else:
            keep(part, overhead(options.steps, options.repeats))


if __name__ == "__main__":
    main()
