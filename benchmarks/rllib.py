"""Environment steps per second of whole training, against RLlib: PPO with the same environments, network and batches.

`python benchmarks/rllib.py --peers PYTHON` adds to rllib.json. PYTHON has `ray[rllib]`, torch and `gymnasium[mujoco]`:
RLlib 2.60 needs an older Gymnasium, hence an environment of its own. Both collect a batch of 2,048 steps in 8
environments and take 10 epochs of minibatches of 256 with two tanh networks of 64-64 units, on one thread. Iterations
are timed after a first one; the two libraries take turns. With workers, RLlib has as many environment runners.
"""

from __future__ import annotations

import os
import time
from typing import Any

import measure

WIDTHS = (64, 64)
ENVIRONMENTS, BATCH, MINIBATCH, EPOCHS = 8, 2_048, 256, 10
TASKS = {"CartPole-v1": (10, 3.0), "HalfCheetah-v5": (5, 1.5)}  # iterations, and how many times as fast is wanted
WORKERS = (0, 2)
ENGINES = ("jax", "torch")


def etude_cell(env_id: str, engine: str, workers: int) -> dict[str, float]:
    """Steps and seconds of etude."""
    import etude

    run = etude.Run(
        "ppo",
        env_id,
        config=etude.algorithms.PPOConfig(
            network=etude.Mlp(WIDTHS, "tanh"), rollout_length=BATCH // ENVIRONMENTS, minibatch_size=MINIBATCH,
            epochs=EPOCHS, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95, clip_range=0.2, value_coefficient=0.5,
            entropy_coefficient=0.0, max_gradient_norm=0.5, normalize_observation=False, normalize_reward=False,
        ),
        engine=engine,
        environments=ENVIRONMENTS,
        workers=workers,
    )  # fmt: skip
    with run:
        run.train(BATCH)
        began = time.perf_counter()
        run.train(TASKS[env_id][0] * BATCH)
        return {"steps": run.step - BATCH, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    options = parser.parse_args()
    if options.cell:
        env_id, engine, workers = options.cell.split(",")
        measure.answer(etude_cell(env_id, engine, int(workers)))
        return
    if not options.peers:
        parser.error("--peers PYTHON: a Python that has ray[rllib]")
    for env_id in options.tasks:
        for workers in options.workers:
            one_task(env_id, workers, options)


def one_task(env_id: str, workers: int, options: Any) -> None:
    """Measure in turns, print, and add to the JSON file."""
    limits, load = dict.fromkeys(measure.LIMITS, "1"), os.getloadavg()[0]
    rates: dict[str, list[float]] = {name: [] for name in (*ENGINES, "rllib")}
    peer = [env_id, str(workers), str(TASKS[env_id][0])]
    for _ in range(options.repeats):
        for engine in ENGINES:
            command = measure.script("rllib.py", "--cell", f"{env_id},{engine},{workers}")
            rates[engine].append(rate(measure.process(command, **limits)))
        command = measure.script("peers_rllib.py", *peer, python=options.peers)
        rates["rllib"].append(rate(measure.process(command, **limits)))
    wanted = TASKS[env_id][1]
    ratios = {engine: {**measure.ratio(rates[engine], rates["rllib"]), "wanted": wanted} for engine in ENGINES}
    speeds = {name: measure.summary(values) for name, values in rates.items()}
    name = f"ppo, {env_id}, {workers} workers"
    measure.show(name, speeds, "steps/s")
    measure.show("  times as fast as RLlib", ratios, "")
    versions = measure.process(measure.script("peers_rllib.py", "versions", python=options.peers))
    found = {"steps_per_second": speeds, "times_as_fast": ratios, "load_before": load, "rllib": versions}
    measure.write(__file__, {name: found})


def rate(found: dict[str, float]) -> float:
    """Steps per second."""
    return found["steps"] / found["seconds"]


if __name__ == "__main__":
    main()
