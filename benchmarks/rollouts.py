"""Environment steps per second: in process, on a pool of workers that act by themselves, and in Stable-Baselines3.

`python benchmarks/rollouts.py --peers PATH_TO_PYTHON` writes rollouts.json. Of etude, the policy (DQN 4-128-2 on
CartPole-v1, SAC 256x256 on HalfCheetah-v5) and the hand-over of steps are included; the peers take random actions that
were drawn beforehand. Resident memory is that of the worker processes, in MB.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import measure

TASKS = {"CartPole-v1": ("dqn", 64_000), "HalfCheetah-v5": ("sac", 16_000)}
WORKERS, EACH = 2, 8
FRAMEWORKS = ("torch", "jax", "keras", "tensorflow")


def workers_of(pid: int) -> list[int]:
    """The processes at the ends of the tree of those that a process started, but for Python's own resource tracker."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    started = [int(child) for task in tasks for child in task.read_text().split()]
    started = [child for child in started if "resource_tracker" not in Path(f"/proc/{child}/cmdline").read_text()]
    return [worker for child in started for worker in workers_of(child) or [child]]


def resident(pid: int) -> float:
    """Resident memory of a process in MB (10**6 bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def loaded_frameworks(pid: int) -> list[str]:
    """Frameworks whose libraries a process has mapped."""
    mapped = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in FRAMEWORKS if f"/site-packages/{name}/" in mapped]


def rollout(env_id: str, workers: int, environments: int, widths: tuple[int, ...] = (128,), **options: Any) -> Any:
    """A rollout as a run would have it, without a learner. widths: of DQN's network. options: of `PoolOptions`."""
    import numpy as np

    import etude
    from etude.engines.numpy import NumpyEngine
    from etude.envs import make_environments
    from etude.explore import EpsilonGreedy, Sample
    from etude.rollout import InProcess, Pool, PoolOptions

    make = functools.partial(make_environments, env_id, run_seed=0)
    single = make(np.arange(1))
    spaces = single.spaces
    single.close()
    agent: Any
    if TASKS[env_id][0] == "dqn":
        agent, explorer = (
            etude.algorithms.DQN(etude.algorithms.DQNConfig(etude.Mlp(widths))),
            EpsilonGreedy(0.1, total=1),
        )
    else:
        agent, explorer = etude.algorithms.SAC(etude.algorithms.SACConfig(etude.Mlp((256, 256)))), Sample()
    actor = functools.partial(NumpyEngine, agent, spaces)
    if workers == 0:
        return InProcess(make(np.arange(environments)), actor(), explorer, 0)
    return Pool(make, actor, explorer, 0, environments, workers, PoolOptions(**options))


def etude_cell(env_id: str, repeats: int) -> dict:
    """Steps per second of each rollout, in turns; memory and frameworks of the workers."""
    steps = TASKS[env_id][1]
    everything = {
        f"in process, {EACH} environments": rollout(env_id, 0, EACH),
        f"in process, {WORKERS * EACH} environments": rollout(env_id, 0, WORKERS * EACH),
        f"pool, {WORKERS} workers of {EACH} environments": rollout(env_id, WORKERS, WORKERS * EACH),
    }
    found: dict[str, Any] = {name: [] for name in everything}
    for turn in range(repeats + 1):
        for name, one in everything.items():
            began = time.perf_counter()
            for _ in range(4):
                taken = len(one.collect(steps // 4 // one.environments, 0))
            rate = 4 * taken / (time.perf_counter() - began)
            if turn:  # the first is a warm-up
                found[name].append(rate)
    found["resident"] = [resident(pid) for pid in workers_of(os.getpid())]
    found["frameworks"] = sorted({name for pid in workers_of(os.getpid()) for name in loaded_frameworks(pid)})
    for one in everything.values():
        one.close()
    return found


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    options = parser.parse_args()
    if options.cell:
        measure.answer(etude_cell(options.cell, options.repeats))
        return
    for env_id in options.tasks:
        one_task(options, env_id)


def one_task(options: Any, env_id: str) -> None:
    """Measure, print, and add to the JSON file. Every process has one thread of its own, as workers do."""
    limits = dict.fromkeys(measure.LIMITS, "1")
    command = measure.script("rollouts.py", "--cell", env_id, "--repeats", str(options.repeats))
    found = measure.process(command, **limits)
    memory, frameworks = found.pop("resident"), found.pop("frameworks")
    small, large, pool = found.values()
    result: dict[str, Any] = {
        "pool / in process, the same environments": {**measure.ratio(pool, large), "wanted": 1.7},
        "pool / in process, 8 environments": measure.ratio(pool, small),
        "worker, resident MB": {**measure.summary(memory), "wanted": 90},
        "worker, frameworks": frameworks,
    }
    if options.peers:
        peers: dict[str, list] = {"DummyVecEnv": [], "SubprocVecEnv": []}
        for _ in range(options.repeats):
            steps = str(TASKS[env_id][1] // 4)
            command = measure.script("peers.py", "rollouts", env_id, str(EACH), steps, python=options.peers)
            one = measure.process(command, **limits)
            result["SubprocVecEnv worker, resident MB"] = measure.summary(one["resident"])
            for name, rates in peers.items():
                rates.append(one[name])
        found |= {f"SB3 {name}, {EACH} environments": rates for name, rates in peers.items()}
        result["pool / SB3 SubprocVecEnv"] = measure.ratio(pool, peers["SubprocVecEnv"])
    rates = {name: measure.summary(values) for name, values in found.items()}
    measure.show(env_id, rates, "steps/s")
    measure.show("  ratios and memory", {n: row for n, row in result.items() if isinstance(row, dict)}, "")
    measure.write(__file__, {env_id: {"steps_per_second": rates, **result}}, options.peers)


if __name__ == "__main__":
    main()
