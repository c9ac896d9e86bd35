"""Does Go-Explore find what random actions do not? Four tasks, five seeds, 100,000 environment steps of each search.

`python benchmarks/go_explore.py` writes go_explore.json: after how many steps an episode with the reward had been found
(looked at every 1,000), the best return, the cells; and the best return of random actions in as many steps.
"""

from __future__ import annotations

import gymnasium as gym
import measure
import numpy as np

from etude.examples.deep_sea import DeepSea
from etude.examples.far_goal import FarGoal
from etude.training.go_explore import GoExplore

STEPS, EVERY, SEEDS = 100_000, 1_000, (1, 2, 3, 4, 5)
# what makes it, the cell of an observation, the return of an episode that was rewarded
TASKS = {
    "MountainCar-v0": (lambda: gym.make("MountainCar-v0"), lambda x: tuple(np.floor(x / [0.05, 0.005])), -199),
    "DeepSea, 20 x 20": (lambda: DeepSea(20), lambda x: int(x.argmax()), 0.5),
    "DeepSea, 30 x 30": (lambda: DeepSea(30), lambda x: int(x.argmax()), 0.5),
    "FarGoal, 60 steps": (FarGoal, lambda x: tuple(np.rint(60 * x[:2])), 1),
}


def at_random(env: gym.Env, seed: int) -> float:
    """The best return of whole episodes of random actions."""
    env.action_space.seed(seed)
    best, total = -np.inf, 0.0
    env.reset(seed=seed)
    for _ in range(STEPS):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += float(reward)
        if terminated or truncated:
            best, total = max(best, total), 0.0
            env.reset()
    return best


def main() -> None:
    found = {}
    for task, (make, cell, rewarded) in TASKS.items():
        cells = []
        for seed in SEEDS:
            search, first = GoExplore(make, cell, seed=seed), None
            while search.steps < STEPS:
                search.explore(EVERY)
                if first is None and search.best_return is not None and search.best_return >= rewarded:
                    first = search.steps
            best = measure.significant(search.best_return)
            random = measure.significant(at_random(make(), seed))
            cells.append(
                {"found_after": first, "best_return": best, "cells": len(search.cells), "best_of_random": random}
            )
            print(task, seed, cells[-1], flush=True)
        found[task] = {"steps": STEPS, "seeds": dict(zip(map(str, SEEDS), cells, strict=True))}
    measure.write(__file__, found)


if __name__ == "__main__":
    main()
