"""How long until it is learned? Ape-X with two workers, which collect while the learner learns, against DQN.

`python benchmarks/apex.py --seeds 1 2 3` writes apex.json: the seconds of training, compilation included, until the
mean return of 20 episodes reaches the bar; evaluations, one after each fiftieth of the run, are not counted. Both have
their presets, and the same engine. To be run alone on the machine: three processes compute. CartPole steps in 20
microseconds, which leaves little for workers to do; once more with the millisecond that simulators may take.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

import gymnasium
import measure
import numpy as np

import etude
from etude import presets
from etude.training.description import config_for

ENVIRONMENT, BAR = "CartPole-v1", 475.0
TASKS = {"CartPole-v1": 0.0, "CartPole-v1, 1 ms a step": 1e-3}  # seconds that a step takes at least
ALGORITHMS = {"dqn": {}, "apex_dqn": {"workers": 2, "overlap": True}}
EPISODES, FIRST_RESET = 20, 1_000_000


class AtLeast(gymnasium.Wrapper):
    """An environment whose steps keep a core busy for so many seconds at least."""

    def __init__(self, seconds: float):
        super().__init__(gymnasium.make(ENVIRONMENT))
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + self.seconds
        found = self.env.step(action)
        while time.perf_counter() < until:
            pass
        return found


def train(algorithm: str, task: str, seed: int) -> dict:
    """One run, in this process: seconds and environment steps until the bar is reached, or None."""
    preset = presets.lookup(algorithm, ENVIRONMENT)
    run = etude.Run(
        algorithm,
        functools.partial(AtLeast, TASKS[task]) if TASKS[task] else ENVIRONMENT,
        config=config_for(algorithm, ENVIRONMENT),
        environments=preset.environments,
        seed=seed,
        engine="jax",
        execution=etude.Execution(device="cpu"),
        **ALGORITHMS[algorithm],
    )
    judged_every, judged, best = preset.steps // 50, 0, -float("inf")
    began, seconds = time.perf_counter(), 0.0
    with run:
        for _ in run.steps(preset.steps):
            if run.step // judged_every == judged:
                continue
            judged = run.step // judged_every
            seconds += time.perf_counter() - began
            best = max(best, mean_return(run.actor()))
            if best >= BAR:
                return {"seconds": round(seconds, 2), "steps": run.step}
            began = time.perf_counter()
    return {"seconds": None, "steps": None, "best": measure.significant(best)}


def mean_return(actor: Any) -> float:
    """Of episodes with the actions of the highest value, whose steps take no longer than they must."""
    environment, returns = gymnasium.make(ENVIRONMENT), []
    for episode in range(EPISODES):
        observation, over = environment.reset(seed=FIRST_RESET + episode)[0], False
        returns.append(0.0)
        while not over:
            action = int(np.argmax(actor.act(observation[None])[0]))
            observation, reward, terminated, truncated, _ = environment.step(action)
            returns[-1] += float(reward)
            over = terminated or truncated
    return statistics.mean(returns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, task, seed = options.cell.split("/")
        measure.answer(train(algorithm, task, int(seed)))
        return
    for task in options.tasks:
        held = measure.read(__file__).get(task, {})
        cells = {algorithm: held.get(algorithm, {}) for algorithm in ALGORITHMS}
        for seed in options.seeds:
            for algorithm in ALGORITHMS:  # in turns, as the machine's speed changes
                key = f"{algorithm}/{task}/{seed}"
                found = measure.process(measure.script("apex.py", "--cell", key))
                cells[algorithm][str(seed)] = found
                print(key, found, flush=True)
        measure.write(__file__, {task: {**cells, "bar": BAR, "summary": summary(cells)}})


def summary(cells: dict[str, dict]) -> dict:
    """How many times as fast Ape-X is; over the seeds on which both reach the bar."""
    both = [seed for seed in cells["dqn"] if all(found.get(seed, {}).get("seconds") for found in cells.values())]
    ratios = [cells["dqn"][seed]["seconds"] / cells["apex_dqn"][seed]["seconds"] for seed in both]
    return {
        "reached": {name: sum(cell["seconds"] is not None for cell in found.values()) for name, found in cells.items()},
        "times_as_fast": {
            "median": measure.significant(statistics.median(ratios)),
            "each": [round(x, 2) for x in ratios],
        }
        if ratios
        else None,
    }


if __name__ == "__main__":
    main()
