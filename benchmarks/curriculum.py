"""What a curriculum is good for, and what it costs.

`python benchmarks/curriculum.py` writes curriculum.json. Learning: PPO on `etude.examples.far_goal` with the task moved
on by a callback, and without, five seeds; a cell is the share of 100 evaluation episodes at distance 60 that reach
their goal. Cost: CPU seconds of PPO with 200 tasks in a run, over those of the same steps without; both take turns,
`--chunk` steps at a time, a new task before each, and the ratio is the median over 200 turns, with its quartiles.
`again` sets no task either: how far it is from 1 is the noise of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import measure
import numpy as np

import etude
from etude.examples.far_goal import FarGoal

FARTHEST, STEPS, EPISODES = 60, 60_000, 100
SETTINGS = {
    "environments": 8, "rollout_length": 128, "minibatch_size": 256, "epochs": 4, "learning_rate": 1e-3,
    "entropy_coefficient": 0.01, "engine": "torch", "device": "cpu",
}  # fmt: skip


class Further(etude.Callback):
    """Moves the goal away whenever nine of ten of the last 50 episodes reached it."""

    def on_train_begin(self, run: Any, event: Any) -> None:
        self.returns: list[float] = []
        self.reached_at: list[int] = []
        run.set_task(1)

    def on_episode_end(self, run: Any, episode: Any) -> None:
        self.returns = [*self.returns[-49:], episode.total]
        if run.task < FARTHEST and len(self.returns) == 50 and np.mean(self.returns) >= 0.9:
            self.reached_at.append(run.step)
            run.set_task(min(FARTHEST, run.task + 1 + run.task // 8))
            self.returns = []


def learned(curriculum: bool, seed: int) -> dict[str, Any]:
    """The share of goals reached after training."""
    further = Further()
    with etude.Run("ppo", FarGoal, seed=seed, **SETTINGS) as run:
        began = time.process_time()
        run.train(STEPS, [further] if curriculum else [])
        seconds = time.process_time() - began
        reached = {name: run.evaluate(EPISODES, task=FARTHEST, explore=explore).mean
                   for name, explore in (("best", False), ("exploring", True))}  # fmt: skip
    farther = {"moved on at": further.reached_at} if curriculum else {}
    return {"reached": reached["best"], "reached exploring": reached["exploring"],
            "CPU seconds": round(seconds, 1), **farther}  # fmt: skip


def cost(turns: int, chunk: int) -> dict[str, Any]:
    """CPU seconds with a new task before each turn, over those without one."""
    runs = {name: etude.Run("ppo", FarGoal, seed=1, **SETTINGS) for name in ("without", "again", "tasks")}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        order = list(runs) if turn % 2 else list(runs)[::-1]
        for name in order:
            began = time.process_time()
            if name == "tasks":
                # The environment's own distance: the work of the environment stays the same.
                runs[name].set_task(FARTHEST)
            runs[name].train(chunk)
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - began)
    return {
        "turns": turns,
        "steps per task": chunk,
        "steps per CPU second": round(chunk / statistics.median(seconds["without"])),
        **{name: ratio(seconds[name], seconds["without"]) for name in ("again", "tasks")},
    }


def ratio(these: list[float], those: list[float]) -> dict[str, float]:
    """The median and the quartiles of the ratios of each turn, and the ratio of the sums."""
    ratios = [a / b for a, b in zip(these, those, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(median, 4), "low": round(low, 4), "high": round(high, 4),
            "of sums": round(sum(these) / sum(those), 4)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=1024)
    options = parser.parse_args()
    results: dict[str, Any] = {"steps": STEPS, "distance": FARTHEST, "settings": SETTINGS, "learning": {}}
    for curriculum in (True, False):
        cells = results["learning"]["curriculum" if curriculum else "none"] = {}
        for seed in options.seeds:
            cells[str(seed)] = learned(curriculum, seed)
            print(curriculum, seed, cells[str(seed)], flush=True)
            measure.write(__file__, results)
    results["cost"] = cost(options.tasks, options.chunk)
    measure.write(__file__, results)
    print(results["cost"])


if __name__ == "__main__":
    main()
