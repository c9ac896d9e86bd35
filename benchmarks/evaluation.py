"""What evaluating ten episodes every 1,000 steps costs a run: beside training (`evaluate_workers=1`), and in the
process that trains, over the same run without evaluations. `neighbour` is that run beside a process that steps
CartPole for nothing: what a busy second core alone costs on this machine, whose cores share caches and memory.

`python benchmarks/evaluation.py` writes evaluation.json. Every repeat makes the three runs in turn, each in a process
of its own; a ratio is the median over repeats, with the lowest and the highest. Seconds are from the first collected
step to the end of the run, its last evaluation included; `start` is what starting the worker took before them.
`processor` is the CPU time of the process that trains. On a machine that does other work (`load`), wall time depends
on that work: a worker that finds no free core delays the training that waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import measure

import etude
from etude.base.events import Collected, Evaluated

ENGINE = "torch"
EVERY, EPISODES = 1_000, 10
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "beside": {"evaluate_every": EVERY, "evaluate_episodes": EPISODES, "evaluate_workers": 1},
    "sequential": {"evaluate_every": EVERY, "evaluate_episodes": EPISODES},
    "neighbour": {},
}
ALGORITHM, ENVIRONMENT = "dqn", "CartPole-v1"  # where an evaluation takes up to five times as many steps as training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measured(options.cell, options.steps)))
        return
    results: dict[str, Any] = {
        "algorithm": ALGORITHM,
        "environment": ENVIRONMENT,
        "engine": ENGINE,
        "steps": options.steps,
    }
    results |= {"repeats": options.repeats, "every": EVERY, "episodes": EPISODES}
    results["load"] = round(os.getloadavg()[0], 1)  # processes that wanted a core when the measurement began
    turns: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    limits = dict.fromkeys(measure.LIMITS, "1")
    for turn in range(options.repeats):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            command = measure.script("evaluation.py", "--cell", way, "--steps", str(options.steps))
            with busy_process() if way == "neighbour" else contextlib.nullcontext():
                turns[way].append(measure.process(command, **limits))
    results |= compared(turns)
    measure.write(__file__, results)
    print(json.dumps(results, indent=1))


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that steps CartPole until it is no longer needed."""
    stepping = (
        "import gymnasium\nenv = gymnasium.make('CartPole-v1')\n"
        "while True:\n    env.reset()\n    while not any(env.step(env.action_space.sample())[2:4]): pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", stepping])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(way: str, steps: int) -> dict[str, Any]:
    """Seconds and CPU seconds of one run, and what its evaluations found."""
    with etude.Run(ALGORITHM, ENVIRONMENT, engine=ENGINE, seed=1) as run:
        began, wall, processor, means, lengths = time.perf_counter(), 0.0, 0.0, [], 0
        for event in run.steps(steps, **WAYS[way]):
            if isinstance(event, Collected) and not wall:
                wall, processor = time.perf_counter(), time.process_time()
            if isinstance(event, Evaluated):
                means.append(event.mean)
                lengths += sum(event.lengths)
        ended = time.perf_counter(), time.process_time()
    found = {"wall": ended[0] - wall, "processor": ended[1] - processor, "start": wall - began}
    return found | {"means": means, "evaluation_steps": lengths}


def compared(turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Both ways to evaluate over the run without. The returns of both ways are the same, or this raises."""
    if any(a["means"] != b["means"] for a, b in zip(turns["beside"], turns["sequential"], strict=True)):
        raise RuntimeError("Evaluations beside training found other returns than those in the same process.")
    first = turns["beside"][0]
    found: dict[str, Any] = {"evaluations": len(first["means"]), "evaluation_steps": first["evaluation_steps"]}
    found["start"] = round(statistics.median(turn["start"] for turn in turns["beside"]), 2)
    for kind in ("wall", "processor"):
        none = [turn[kind] for turn in turns["none"]]
        found[kind] = {"none": round(statistics.median(none), 2)}
        for way in ("beside", "sequential", "neighbour"):
            ratios = [turn[kind] / base for turn, base in zip(turns[way], none, strict=True)]
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            found[kind][way] = {"ratio": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}
    return found


if __name__ == "__main__":
    main()
