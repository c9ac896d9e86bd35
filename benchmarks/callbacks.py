"""What callbacks, a custom metric and `keep_info` cost: CPU seconds of PPO and DQN on CartPole with them, over those of
the same steps without.

`python benchmarks/callbacks.py` writes callbacks.json. Runs with and without take turns, `--chunk` steps at a time, and
a ratio is the median over all turns, with its quartiles. CPU seconds are those of this process, which does all the
work. `again` adds nothing: how far it is from 1 is the noise of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import gymnasium as gym
import measure
import numpy as np

import etude

ENGINE = "torch"
CASES = ("again", "callback", "metric", "keep_info", "all")  # again: nothing is added, the noise of a ratio


class Informed(gym.Wrapper):
    """Returns the position and a flag in `info`."""

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, {"x": float(observation[0]), "success": truncated}


class Looking(etude.Callback):
    """Array work on every collected batch of steps, and a call for every episode and update."""

    def __init__(self) -> None:
        self.largest, self.episodes, self.updates = 0.0, 0, 0

    def on_steps_collected(self, run: Any, event: Any) -> None:
        for steps in event.steps:
            self.largest = max(self.largest, float(np.abs(steps.observation[..., 0]).max()))

    def on_episode_end(self, run: Any, episode: Any) -> None:
        self.episodes += 1

    def on_update(self, run: Any, event: Any) -> None:
        self.updates += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--chunk", type=int, default=512)
    options = parser.parse_args()
    results: dict[str, Any] = {"turns": options.turns, "chunk": options.chunk, "engine": ENGINE, "cells": {}}
    for algorithm in ("ppo", "dqn"):
        results["cells"][algorithm] = measured(algorithm, options.turns, options.chunk)
        measure.write(__file__, results)
        print(algorithm, results["cells"][algorithm], flush=True)


def measured(algorithm: str, turns: int, chunk: int) -> dict[str, Any]:
    """CPU seconds with each addition, over those without, by the name of the addition."""
    runs = {name: run_with(algorithm, name) for name in ("nothing", *CASES)}
    callbacks = {name: [Looking()] if name in ("callback", "all") else [] for name in runs}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        order = list(runs) if turn % 2 else list(runs)[::-1]
        for name in order:
            began = time.process_time()
            runs[name].train(chunk, callbacks[name])
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - began)
    found = {"steps per CPU second": round(chunk / statistics.median(seconds["nothing"]))}
    return found | {name: ratio(seconds[name], seconds["nothing"]) for name in CASES}


def ratio(these: list[float], those: list[float]) -> dict[str, float]:
    """The median and the quartiles of the ratios of each turn."""
    ratios = [a / b for a, b in zip(these, those, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(median, 4), "low": round(low, 4), "high": round(high, 4)}


def run_with(algorithm: str, addition: str) -> etude.Run:
    """A run of the preset with one of the additions."""
    kept = ("x",) if addition in ("keep_info", "all") else ()
    config = etude.config(algorithm, "CartPole-v1")
    env = partial(gym.make, "CartPole-v1")
    run = etude.Run(
        algorithm,
        etude.Environment(env, wrappers=[Informed]),
        config=config,
        engine=ENGINE,
        seed=1,
        execution=etude.Execution(keep_info=kept),
    )
    if addition in ("metric", "all"):
        run.metric("pole_angle", lambda steps: np.abs(steps.observation[..., 2]))
    return run


if __name__ == "__main__":
    main()
