"""How long `import etude` takes, how long until the first gradient step of DQN on CartPole-v1, and how long from a pool
of many workers, with an environment each, to its first chunk.

`python benchmarks/start_up.py` writes start_up.json. Every figure is of a process of its own, from its first line; the
interpreter's own start is measured apart. Processor seconds of a pool are those of its workers, up to their end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import measure

IMPORT = """
import time; began = time.perf_counter()
import {module}
print(time.perf_counter() - began)
"""
FIRST_STEP = """
import time; began = time.perf_counter()
import etude
from etude.base.events import Learned
with etude.Run("dqn", "CartPole-v1", engine="{engine}", device="cpu") as run:
    made = time.perf_counter()
    for event in run.steps(50_000):
        if isinstance(event, Learned):
            break
learned = time.perf_counter()
import json
print(json.dumps({{"made": made - began, "learned": learned - began}}))
"""
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
WANTED = {"import etude": 0.4, "jax, first gradient step": 4.0}


def measured(repeats: int, engines: list[str]) -> dict[str, list[float]]:
    """Seconds, in turns, after one round that fills the caches of the disk."""
    modules = {"import numpy": "numpy", "import gymnasium": "gymnasium", "import etude": "etude"}
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        taken = {name: run(IMPORT.format(module=module)) for name, module in modules.items()}
        for engine in engines:
            answer = run(FIRST_STEP.format(engine=engine))
            taken[f"{engine}, run made"] = answer["made"]
            taken[f"{engine}, first gradient step"] = answer["learned"]
        if turn:
            for name, seconds in taken.items():
                found.setdefault(name, []).append(seconds)
    return found


def measured_pools(repeats: int, sizes: list[int]) -> dict[str, list[float]]:
    """Seconds of pools of so many workers, alone and beside two processes that compute, in turns."""
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for busy in (0, 2):
            others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
            try:
                for workers in sizes:
                    answer = run(POOL.format(workers=workers))
                    name = f"{workers} workers" + (f" beside {busy} busy processes" if busy else "")
                    found.setdefault(f"{name}, first chunk", []).append(answer["taken"])
                    found.setdefault(f"{name}, processor", []).append(answer["used"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    return found


def run(program: str):
    folder = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return measure.process([sys.executable, "-c", program], PYTHONPATH=folder)


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--engines", nargs="*", default=["jax", "tensorflow", "torch"])
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 16, 64], help="sizes of pools")
    options = parser.parse_args()
    found = measured(options.repeats, options.engines) if options.engines else {}
    found |= measured_pools(options.repeats, options.workers)
    rows = {name: measure.summary(seconds) for name, seconds in found.items()}
    measure.show("Starting", rows, "s")
    for name, most in WANTED.items():
        if name in rows:
            rows[name]["wanted"] = most
    measure.write(__file__, {"seconds": {**measure.read(__file__).get("seconds", {}), **rows}})


if __name__ == "__main__":
    main()
