"""Environment steps per second of workers that are processes and of workers that are Ray actors, 1 and 2 of them.

`python benchmarks/ray_rollouts.py` writes ray_rollouts.json. Agents, environments and their number per worker are those
of rollouts.py. Before each request all weights are loaded anew, as a run does that learns from every request.

The processor time per step of the collecting process says when a learner saturates; with that of the workers it
compares the two where the machine is busy with something else.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import measure
from rollouts import EACH, TASKS, rollout

from etude.workers.channel import weights_size
from etude.workers.ray import RayBackend, RayWorker

REQUESTS = (32, 256)  # time steps of a request
WORKERS = (1, 2)
KINDS = ("processes", "actors")


def ray_cell(env_id: str, repeats: int) -> dict[str, Any]:
    """Steps per second of each rollout, in turns, and processor time per step of this process."""
    import ray

    ray.init(
        "local", num_cpus=sum(WORKERS), include_dashboard=False, object_store_memory=500_000_000, log_to_driver=False
    )
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
                pids = workers_of(one) if turn else []
                measured = collect(one, pids, weights, request, TASKS[env_id][1] // 4)
                if turn:  # the first is a warm-up
                    found.setdefault(f"{name} x {request}", []).append(measured)
    for one in everything.values():
        one.close()
    ray.shutdown()
    return found


def collect(one: Any, pids: list[int], weights: dict, request: int, steps: int) -> tuple[float, float, float]:
    """Steps per second, and microseconds of processor time per step: of this process, and of the workers."""
    taken, began, own, others = 0, time.perf_counter(), time.process_time(), processor_seconds(pids)
    while taken < steps:
        one.load(weights)
        taken += len(one.collect(request, taken))
    own, others = time.process_time() - own, processor_seconds(pids) - others
    return taken / (time.perf_counter() - began), 1e6 * own / taken, 1e6 * others / taken


def workers_of(one: Any) -> list[int]:
    """The processes of the workers, which have answered before."""
    workers = one._supervisor.workers
    return [worker.process_id if isinstance(worker, RayWorker) else worker.process.pid for worker in workers]


def processor_seconds(pids: list[int]) -> float:
    """Processor time of some processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


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
    """Print, and add to the JSON file. load: of the machine before."""
    size = found.pop("bytes of weights")
    rates, own, others = ({name: [turn[i] for turn in turns] for name, turns in found.items()} for i in range(3))
    together = {name: [sum(turn[1:]) for turn in turns] for name, turns in found.items()}
    ratios, costs = {}, {}
    for workers, request in itertools.product(WORKERS, REQUESTS):
        processes, actors = (f"{kind}, {workers} x {request}" for kind in KINDS)
        name, wanted = f"actors / processes, {workers} x {request}", request == max(REQUESTS)
        ratios[name] = {**measure.ratio(rates[actors], rates[processes]), **({"wanted": 0.9} if wanted else {})}
        costs[name] = measure.ratio(together[processes], together[actors])
    for kind in KINDS:
        above, below = (rates[f"{kind}, {workers} x {max(REQUESTS)}"] for workers in reversed(WORKERS))
        ratios[f"{kind}, 2 / 1"] = measure.ratio(above, below)
    processor = {
        what: {name: measure.summary(values) for name, values in turns.items()}
        for what, turns in (("collecting process", own), ("workers", others))
    }
    speeds = {name: measure.summary(values) for name, values in rates.items()}
    measure.show(env_id, speeds, "steps/s")
    measure.show("  ratios", ratios, "")
    measure.show("  ratios by processor time, without Ray's own processes", costs, "")
    for what, rows in processor.items():
        measure.show(f"  processor time, {what}", rows, "microseconds per step")
    result = {
        "steps_per_second": speeds, "ratios": ratios, "ratios_by_processor_time": costs,
        "microseconds_per_step": processor, "bytes_of_weights": size, "load_before": load,
    }  # fmt: skip
    measure.write(__file__, {env_id: result})


if __name__ == "__main__":
    main()
