"""How many environment steps recorded data saves: SAC alone, SAC with data in half of every batch, and RLPD.

`python benchmarks/prior_data.py [ENVIRONMENT]` adds to prior_data.json, where methods that are not run again stay. The
data is the replay buffer of one SAC run (seed 100) at its end: episodes of every policy from the first one to the last.
SAC and SAC with data have the same hyperparameters, those of the preset; RLPD those of `etude.presets.RLPD`, with the
learning starts of the preset: 20 updates of ten critics for each step. On HalfCheetah, SAC with data trains for half as
many steps as SAC.
A curve holds the mean returns of 10 evaluation episodes, which are the same for all methods of a seed.

`steps to SAC's final return` is the first evaluation with a mean over seeds of at least SAC's at its end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude import presets
from etude.base.events import Evaluated

TASKS = {  # steps of each method, of the run that is recorded, and between two evaluations
    "Pendulum-v1": {"sac": 5_000, "sac with data": 5_000, "rlpd": 500, "data": 6_000, "every": 250},
    "HalfCheetah-v5": {"sac": 40_000, "sac with data": 20_000, "rlpd": 10_000, "data": 50_000, "every": 2_500},
}
TEACHER = 100  # seed
METHODS = ("sac", "sac with data", "rlpd")
PATH = Path(__file__).with_suffix(".json")


def recorded(env: str, engine: str) -> etude.offline.Dataset:
    """The replay of one run of SAC."""
    with etude.Run("sac", env, seed=TEACHER, engine=engine, execution=etude.Execution(device="cpu")) as run:
        run.train(TASKS[env]["data"])
        return etude.replayed(run)


def curve(method: str, env: str, data: etude.offline.Dataset, seed: int, engine: str) -> dict[str, Any]:
    """Evaluations of one run, and its CPU seconds."""
    task = TASKS[env]
    mixed = {} if method == "sac" else {"data": [(data, 0.5), ("sampler", 0.5)]}
    preset = presets.lookup("sac", env)
    assert preset is not None
    starts = {"learning_starts": preset.config["learning_starts"]}
    settings = {**presets.RLPD, **starts} if method == "rlpd" else {}
    began = time.process_time()
    with etude.Run(
        "sac", env, seed=seed, engine=engine, execution=etude.Execution(device="cpu"), **mixed, **settings
    ) as run:
        events = run.steps(task[method], evaluate_every=task["every"], evaluate_episodes=10)
        found = {event.step: round(float(event.mean), 1) for event in events if isinstance(event, Evaluated)}
        final = run.evaluate(50, seed=TEACHER).mean
    return {
        "curve": found,
        "final": round(float(final), 1),
        "engine": engine,
        "CPU seconds": round(time.process_time() - began),
    }


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and how many steps each method needs for SAC's final return."""
    found: dict[str, Any] = {}
    goal = np.mean([cell["final"] for cell in cells["sac"].values()])
    for method, of_seeds in cells.items():
        finals = [cell["final"] for cell in of_seeds.values()]
        curves = np.array([list(cell["curve"].values()) for cell in of_seeds.values()])
        steps = [int(step) for step in next(iter(of_seeds.values()))["curve"]]
        means = curves.mean(0)
        reached = [step for i, step in enumerate(steps) if means[i] >= goal]
        found[method] = {
            "final": round(float(np.mean(finals)), 1),
            "standard error": round(float(np.std(finals, ddof=1) / np.sqrt(len(finals))), 1)
            if len(finals) > 1
            else None,
            "steps to SAC's final return": reached[0] if reached else None,
            "mean curve": dict(zip(map(str, steps), means.round(1).tolist(), strict=True)),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="*", default=["Pendulum-v1"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--engine", default="jax")
    options = parser.parse_args()
    kept = json.loads(PATH.read_text())["environments"] if PATH.exists() else {}
    results: dict[str, Any] = {"tasks": TASKS, "environments": kept}
    for env in options.environments:
        data = recorded(env, options.engine)
        own = kept.setdefault(env, {"runs": {}})
        own["data"] = data.summary()
        for method, seed in itertools.product(options.methods, options.seeds):
            own["runs"].setdefault(method, {})[str(seed)] = cell = curve(method, env, data, seed, options.engine)
            print(env, method, seed, cell["final"], cell["CPU seconds"], flush=True)
            own["summary"] = summary(own["runs"])
            measure.write(__file__, results)


if __name__ == "__main__":
    main()
