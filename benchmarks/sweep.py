"""Many seeds of PPO on CartPole-v1 as one sweep, beside as many runs one after the other on the same cores.

`python benchmarks/sweep.py --steps 50000` writes sweep.json. In turns: runs one after the other in one process
(`in one process`); runs one after the other, each in a process of its own (`processes`), as a loop of a shell over
`etude train` does it; and the sweep. With --sequential N, only N of the runs one after the other are carried out, and
their time is scaled up to all seeds. Both ways save a run four times and write its metrics, and nothing is evaluated.
Every weight of a run is the same in a sweep with the loop, and alone.

`--learn` measures instead what a learn call of PPO takes for each of several members: called one after the other, as a
sweep does it, in a loop that is compiled (`jax.lax.map`), and with batched products (`jax.vmap`).
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

RUN = """
import sys, json, time; began = time.perf_counter()
import etude
from etude.report import JsonLines
first, last, steps, folder, vectorization = sys.argv[1:]
for seed in range(int(first), int(last)):
    path = f"{folder}/alone-{seed}"
    with etude.Run("ppo", "CartPole-v1", seed=seed, run_dir=path, vectorization=vectorization) as run:
        run.train(int(steps), [JsonLines(f"{path}/metrics.jsonl")], save_every=int(steps) // 4)
print(json.dumps({"seconds": time.perf_counter() - began}))
"""
SWEEP = """
import sys, json, time; began = time.perf_counter()
import etude
seeds, steps, folder, vectorization, processes = sys.argv[1:]
result = etude.sweep("ppo", "CartPole-v1", seeds=int(seeds), steps=int(steps), folder=f"{folder}/sweep",
                     vectorization=vectorization, processes=int(processes))
assert not result.failed, result.failed
print(json.dumps({"seconds": time.perf_counter() - began, "iqm": result.iqm, "interval": result.interval}))
"""
WANTED = 0.25  # of the time of runs one after the other


def python(program: str, *arguments: Any) -> dict:
    """What a program printed, with the seconds from before its interpreter started, and its processor time."""
    began, used = time.perf_counter(), measure.processor_seconds()
    found = measure.process([measure.sys.executable, "-c", program, *map(str, arguments)])
    return {**found, "seconds": time.perf_counter() - began, "processor": measure.processor_seconds() - used}


def measured(options: Any, vectorization: str) -> dict[str, dict]:
    """One turn."""
    seeds, some = options.seeds, options.sequential or options.seeds
    with tempfile.TemporaryDirectory() as folder:
        alone = [
            python(RUN, seed, seed + 1, options.steps, f"{folder}/processes", vectorization) for seed in range(some)
        ]
        together = python(RUN, 0, some, options.steps, f"{folder}/loop", vectorization)
        sweep = python(SWEEP, seeds, options.steps, folder, vectorization, options.processes)
        scale = seeds / some
        return {
            "processes": {k: scale * sum(each[k] for each in alone) for k in ("seconds", "processor")},
            "in one process": {k: scale * together[k] for k in ("seconds", "processor")},
            "sweep": sweep,
        }


def learn_calls(members: int, repeats: int) -> dict[str, float]:
    """Milliseconds of processor time for each member of a learn call: 40 steps on batches of 256."""
    import jax
    import numpy as np

    import etude
    from etude.base.data import Batch
    from etude.engines.functional import _read

    run = etude.Run("ppo", "CartPole-v1", seed=0)
    batches: list[Batch] = []
    learn = run.engine.learn
    run.engine.learn = lambda given, hyper: batches.append((given, hyper)) or learn(given, hyper)
    run.train(512)
    engine, (given, hyper) = run.engine, batches[0]
    one = (engine.held, *engine._inputs(_read(given), {}, hyper))
    stacked = jax.tree_util.tree_map(lambda x: np.stack([np.asarray(x)] * members), one)
    alone, vmapped = jax.jit(engine._steps), jax.jit(jax.vmap(engine._steps))
    mapped = jax.jit(lambda *x: jax.lax.map(lambda own: engine._steps(*own), x))
    calls = {
        "one after the other": lambda: [alone(*one) for _ in range(members)],
        "lax.map": lambda: mapped(*stacked),
        "vmap": lambda: vmapped(*stacked),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            began = time.process_time()
            jax.block_until_ready(call())
            if turn:
                found[name].append(1000 * (time.process_time() - began) / members)
    return {name: sorted(each)[len(each) // 2] for name, each in found.items()}


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sequential", type=int, help="carry out so many of the runs one after the other; None: all")
    parser.add_argument("--vectorization", nargs="+", default=["auto", "native"])
    parser.add_argument("--learn", action="store_true")
    parser.set_defaults(repeats=1)
    options = parser.parse_args()
    path = Path(__file__).with_suffix(".json")
    held = json.loads(path.read_text()) if path.exists() else {}
    if options.learn:
        held["learn call"] = {members: learn_calls(members, 5) for members in (1, 4, 16)}
    for vectorization in () if options.learn else options.vectorization:
        turns = [measured(options, vectorization) for _ in range(options.repeats)]
        for turn in turns:
            for name in ("processes", "in one process"):
                turn["sweep"][f"ratio to {name}"] = turn["sweep"]["seconds"] / turn[name]["seconds"]
                turn["sweep"][f"processor ratio to {name}"] = turn["sweep"]["processor"] / turn[name]["processor"]
        held[vectorization] = {
            "seeds": options.seeds, "steps": options.steps, "processes": options.processes, "wanted": WANTED,
            "sequential": options.sequential or options.seeds, "turns": turns,
        }  # fmt: skip
    held["versions"] = measure.versions()
    path.write_text(json.dumps(held, indent=2) + "\n")
    print(json.dumps(held, indent=2))


if __name__ == "__main__":
    main()
