"""Environment steps per second of workers that are processes and of workers that are Ray actors, 1 and 2 of them.

`python benchmarks/ray_rollouts.py` writes ray_rollouts.json. Agents, environments and their number per worker are those
of rollouts.py. Before each request all weights are loaded anew, as a run does that learns from every request. The
seconds of processor time that the collecting process itself spends on a step say when a learner saturates.
"""

from __future__ import annotations

import os
import time
from typing import Any

import measure
from rollouts import EACH, TASKS, rollout

REQUESTS = (32, 256)  # time steps of a request
WORKERS = (1, 2)


def ray_cell(env_id: str, repeats: int) -> dict[str, Any]:
    """Steps per second of each rollout, in turns, and processor time per step of this process."""
    import ray

    from etude.rollout.pool.channel import weights_size
    from etude.rollout.pool.ray_workers import RayBackend

    ray.init(num_cpus=sum(WORKERS), include_dashboard=False, object_store_memory=500_000_000, log_to_driver=False)
    everything = {}
    for workers in WORKERS:
        everything[f"processes, {workers}"] = rollout(env_id, workers, workers * EACH)
        backend = RayBackend("local", workers)
        everything[f"actors, {workers}"] = rollout(env_id, workers, workers * EACH, backend=backend)
    weights = {name: value.copy() for name, value in everything["actors, 1"]._shared.items()}
    found: dict[str, Any] = {"bytes of weights": weights_size(weights)}
    for request in REQUESTS:
        for turn in range(repeats + 1):
            for name, one in everything.items():
                rate, processor = collect(one, weights, request, TASKS[env_id][1] // 4)
                if turn:  # the first is a warm-up
                    found.setdefault(f"{name} x {request}", []).append([rate, processor])
    for one in everything.values():
        one.close()
    ray.shutdown()
    return found


def collect(one: Any, weights: dict, request: int, steps: int) -> tuple[float, float]:
    """Steps per second, and seconds of this process's processor time per step."""
    taken, began, processor = 0, time.perf_counter(), time.process_time()
    while taken < steps:
        one.load(weights)
        taken += len(one.collect(request, taken))
    return taken / (time.perf_counter() - began), (time.process_time() - processor) / taken


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    options = parser.parse_args()
    if options.cell:
        measure.answer(ray_cell(options.cell, options.repeats))
        return
    for env_id in options.tasks:
        load = os.getloadavg()[0]
        command = measure.script("ray_rollouts.py", "--cell", env_id, "--repeats", str(options.repeats))
        found = measure.process(command, **dict.fromkeys(measure.LIMITS, "1"))
        one_task(env_id, found, load)


def one_task(env_id: str, found: dict[str, Any], load: float) -> None:
    """Print, and add to the JSON file. load: of the machine before; 0 is a quiet one."""
    size = found.pop("bytes of weights")
    rates = {name: [rate for rate, _ in turns] for name, turns in found.items()}
    processor = {name: measure.summary([1e6 * each for _, each in turns]) for name, turns in found.items()}
    ratios = {
        f"actors / processes, {workers} x {request}": {
            **measure.ratio(rates[f"actors, {workers} x {request}"], rates[f"processes, {workers} x {request}"]),
            **({"wanted": 0.9} if request == max(REQUESTS) else {}),
        }
        for workers in WORKERS
        for request in REQUESTS
    }
    for kind in ("processes", "actors"):
        above, below = (rates[f"{kind}, {workers} x {max(REQUESTS)}"] for workers in reversed(WORKERS))
        ratios[f"{kind}, 2 / 1"] = measure.ratio(above, below)
    speeds = {name: measure.summary(values) for name, values in rates.items()}
    measure.show(env_id, speeds, "steps/s")
    measure.show("  ratios", ratios, "")
    measure.show("  processor time of the collecting process", processor, "microseconds per step")
    result = {
        "steps_per_second": speeds, "ratios": ratios, "collecting_microseconds_per_step": processor,
        "bytes_of_weights": size, "load_before": load,
    }  # fmt: skip
    measure.write(__file__, {env_id: result})


if __name__ == "__main__":
    main()
