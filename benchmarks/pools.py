"""Pools of many workers, and of many weights.

`python benchmarks/pools.py` writes pools.json. Seconds: from a pool, with an environment of CartPole-v1 for each
worker, to its first chunk, alone and beside two processes that compute; and the processor seconds of its workers, up to
their end. Steps per second with 50 MB of weights (DQN 4-3500-3500-2) and eight environments, in process and with a
worker for each: with the same weights from one chunk of 16 time steps to the next, or new ones for each. Every worker
reads all weights in each time step, and one process reads them once for all environments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure
from rollouts import rollout

POOL = """
import json, resource, time
import etude, rollouts
began = time.perf_counter()
pool = rollouts.rollout("CartPole-v1", {workers}, {workers})
pool.collect(10, 0)
taken = time.perf_counter() - began
pool.close()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({{"taken": taken, "used": used.ru_utime + used.ru_stime}}))
"""
BUSY = "while True: pass"
WIDTHS, ENVIRONMENTS, CHUNK, CHUNKS = (3500, 3500), 8, 16, 4


def starting(repeats: int, sizes: list[int]) -> dict[str, list[float]]:
    """Seconds of pools of so many workers, alone and beside two processes that compute, in turns."""
    found: dict[str, list[float]] = {}
    folder = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for _ in range(repeats):
        for busy in (0, 2):
            others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
            try:
                for workers in sizes:
                    program = POOL.format(workers=workers)
                    answer = measure.process([sys.executable, "-c", program], PYTHONPATH=folder)
                    name = f"{workers} workers" + (f" beside {busy} busy processes" if busy else "")
                    found.setdefault(f"{name}, first chunk", []).append(answer["taken"])
                    found.setdefault(f"{name}, processor", []).append(answer["used"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    return found


def with_many_weights(repeats: int) -> dict[str, list[float]]:
    """Steps per second of each, in turns."""
    import numpy as np

    everything: dict[str, Any] = {
        name: rollout("CartPole-v1", workers, ENVIRONMENTS, WIDTHS)
        for name, workers in (("in process", 0), (f"pool, {ENVIRONMENTS} workers", ENVIRONMENTS))
    }
    like = everything["in process"]._collector.actor.weights()
    weights = {name: np.zeros(x.shape, np.float32) for name, x in like.items()}
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, one in everything.items():
            for given in ("the same", "new ones"):
                began, taken = time.perf_counter(), 0
                for _ in range(CHUNKS):
                    if given == "new ones":
                        one.load(weights)
                    taken += len(one.collect(CHUNK, 0))
                if turn:  # the first is a warm-up
                    found.setdefault(f"{name}, {given}", []).append(taken / (time.perf_counter() - began))
    for one in everything.values():
        one.close()
    return found


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 16, 64], help="sizes of pools")
    options = parser.parse_args()
    if options.cell:
        measure.answer(with_many_weights(options.repeats))
        return
    seconds = {name: measure.summary(found) for name, found in starting(options.repeats, options.workers).items()}
    measure.show("Starting", seconds, "s")
    command = measure.script("pools.py", "--cell", "weights", "--repeats", str(options.repeats))
    found = measure.process(command, **dict.fromkeys(measure.LIMITS, "1"))  # one thread, as workers have
    rates = {name: measure.summary(values) for name, values in found.items()}
    measure.show("50 MB of weights", rates, "steps/s")
    ratios = {
        f"new ones / the same, {name}": measure.ratio(found[f"{name}, new ones"], found[f"{name}, the same"])
        for name in dict.fromkeys(name.rpartition(",")[0] for name in found)
    }
    measure.write(__file__, {"seconds": seconds, "50 MB of weights": {"steps_per_second": rates, **ratios}})


if __name__ == "__main__":
    main()
