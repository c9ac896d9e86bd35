"""Defaults beside the defaults of Stable-Baselines3: no preset on either side, the same number of environment steps.

`python benchmarks/defaults.py --peers PYTHON --jobs 2` writes defaults.json, cell by cell; what is there with the same
config is not run again. `--only ppo/Hopper` takes what holds the text, `--sides etude` one side, `--seeds 1 2` some
seeds; `--list` tells what is left to run and what it will cost, `--plot` draws what is there into defaults.png. Each
cell is evaluated on 20 episodes, with the best actions and from the same starts on both sides.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

from etude.algorithms import find
from etude.base.seeding import episode_seed
from etude.checkpoint.config_json import to_json
from etude.report.pictures import COLOURS, finish, grid, legend, picture
from etude.training.assembly.parts import with_environments
from etude.training.description import Execution

DISCRETE = ("Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "Taxi-v4", "FrozenLake-v1")
CONTINUOUS = (
    "InvertedDoublePendulum-v5", "Hopper-v5", "HalfCheetah-v5", "Swimmer-v5", "LunarLanderContinuous-v3",
)  # fmt: skip
# An image and a direction, without the mission, which is always the same here: its 124 characters would be most of the
# weights. Stable-Baselines3 has the wrapper of RL Baselines3 Zoo.
GRID = ("MiniGrid-Empty-5x5-v0",)
# What a newcomer tries first; defaults were tuned on InvertedPendulum.
FIRST = ("FrozenLake8x8-v1", "CliffWalking-v1", "InvertedPendulum-v5")
# Environments, steps, and seconds of a cell of etude and of Stable-Baselines3, each on a core of its own.
TASKS = {
    "ppo": ((*DISCRETE, *CONTINUOUS, *FIRST, *GRID), 100_000, (25, 110)),
    "a2c": ((*DISCRETE, *CONTINUOUS), 100_000, (15, 80)),
    "dqn": ((*DISCRETE, *FIRST[:2]), 100_000, (30, 70)),
    "sac": (CONTINUOUS, 20_000, (210, 350)),
    "td3": (CONTINUOUS, 20_000, (150, 350)),
    "ddpg": (CONTINUOUS, 20_000, (140, 320)),
}
SIDES = ("etude", "sb3")
EPISODES, COLUMNS = 20, 10
EVALUATION = 7_919  # added to a seed for the episodes of its evaluation
RESAMPLES = 10_000
NARROWEST = 0.05  # axis of a row of the picture, as a part of the values
FEWEST = 3  # seeds; the interval of fewer says nothing


def starts(seed: int) -> list[int]:
    """The seeds of the episodes that a cell is evaluated on: those that `Run.evaluate` plays."""
    run_seed = seed + EVALUATION
    return [episode_seed(run_seed, column, turn) for turn in range(EPISODES // COLUMNS) for column in range(COLUMNS)]


def train(algorithm: str, environment: str, seed: int) -> dict:
    """One cell of etude, in this process."""
    import gymnasium as gym

    import etude

    _, steps, _ = TASKS[algorithm]
    began = time.perf_counter()
    # A callable, as an id would take over the number of environments of a preset.
    make = functools.partial(gym.make, f"minigrid:{environment}" if environment in GRID else environment)
    wrappers = ["drop:mission"] if environment in GRID else None
    run = etude.Run(
        algorithm,
        etude.Environment(make, wrappers=wrappers),
        config=find(algorithm)[1](),
        seed=seed,
        engine="jax",
        execution=etude.Execution(device="cpu"),
    )
    run.train(steps)
    seconds = time.perf_counter() - began
    found = run.evaluate(episodes=EPISODES, seed=seed + EVALUATION)
    run.close()
    return {"return": measure.significant(found.mean, 5), "steps": steps, "seconds": round(seconds, 1)}


def cell(key: str, peers: str | None) -> dict:
    """One cell of either side, in a process with one thread."""
    algorithm, environment, side, seed = key.split("/")
    if side == "etude":
        return measure.cell("defaults.py", key)
    _, steps, _ = TASKS[algorithm]
    asked = json.dumps({"steps": steps, "seed": int(seed), "starts": starts(int(seed))})
    command = measure.script("peers_defaults.py", algorithm, environment, asked, python=str(peers))
    return measure.process(command, timeout=6 * 3600, **dict.fromkeys(measure.LIMITS, "1"))


def interval(returns: list[float]) -> tuple[float, float]:
    """Of the mean, by resampling the seeds: its 2.5th and 97.5th percentiles."""
    values = np.array(returns)
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(1), (2.5, 97.5))
    return float(low), float(high)


class Table:
    """The JSON file: cells by name, and the defaults of each algorithm that etude's were run with."""

    def __init__(self) -> None:
        self.cells: dict[str, dict] = {}
        self._take_over()

    def _take_over(self) -> None:
        """What is in the file, other processes' too, but for etude's cells with other defaults."""
        held = measure.read(__file__)
        configs = {name: measure.with_new_fields(name, config) for name, config in held.get("configs", {}).items()}
        same = [algorithm for algorithm in TASKS if configs.get(algorithm) == config_of(algorithm)]
        for key, found in held.get("cells", {}).items():
            algorithm, _, side, _ = key.split("/")
            if side != "etude" or algorithm in same:
                self.cells[key] = found

    def add(self, key: str, found: dict) -> None:
        """Take over what other processes have written, and add a cell."""
        self._take_over()
        self.cells[key] = found
        configs = {algorithm: config_of(algorithm) for algorithm in TASKS}
        ordered = dict(sorted(self.cells.items()))
        measure.write(__file__, {"configs": configs, "summary": self.summary(), "cells": ordered})

    def returns(self, task: str, side: str) -> list[float]:
        """Of the seeds that are there."""
        return [held["return"] for key, held in self.cells.items() if key.startswith(f"{task}/{side}/")]

    def summary(self) -> dict[str, dict]:
        """By algorithm and environment: mean and interval of both sides, and which is better outside of them."""
        found = {}
        for task in tasks():
            sides = {side: self.returns(task, side) for side in SIDES}
            if all(sides.values()):
                found[task] = {side: described(returns) for side, returns in sides.items()}
                ours, theirs = (found[task][side]["interval"] for side in SIDES)
                better = "etude" if ours[0] > theirs[1] else "sb3" if theirs[0] > ours[1] else "neither"
                found[task]["better"] = better if min(map(len, sides.values())) >= FEWEST else "neither"
        return found


def described(returns: list[float]) -> dict:
    """Mean, interval and how many seeds."""
    low, high = (measure.significant(bound, 5) for bound in interval(returns))
    return {"mean": measure.significant(statistics.mean(returns), 5), "interval": [low, high], "seeds": len(returns)}


def tasks() -> list[str]:
    return [f"{algorithm}/{environment}" for algorithm, (names, _, _) in TASKS.items() for environment in names]


@functools.cache
def config_of(algorithm: str) -> dict[str, Any]:
    """The default hyperparameters and number of environments, as plain data."""
    kind, config = find(algorithm)
    agent = kind(config())
    return {
        "environments": with_environments(Execution(), algorithm, agent, None).environments,
        **to_json(agent.config),
    }


def seconds_of(key: str) -> int:
    """About how long a cell takes."""
    algorithm, _, side, _ = key.split("/")
    return TASKS[algorithm][2][SIDES.index(side)]


def draw(summary: dict[str, dict], path: Path) -> None:
    """Means and intervals of both sides: a panel for each algorithm, a row for each environment, from the lowest value
    in it to the highest."""
    drawn = {name: [each for each in names if f"{name}/{each}" in summary] for name, (names, *_) in TASKS.items()}
    with picture(path, *grid(len(drawn))) as figure:
        panels = figure.subplots(*reversed(grid(len(drawn))), squeeze=False).flat
        for panel, (algorithm, environments) in zip(panels, drawn.items(), strict=False):
            for row, environment in enumerate(environments):
                found = summary[f"{algorithm}/{environment}"]
                bounds = np.array([found[side]["interval"] for side in SIDES])
                least = NARROWEST * np.abs(bounds).max()  # what is alike is to look alike
                width = max(np.ptp(bounds), least) or 1.0
                start = (bounds.min() + bounds.max() - width) / 2
                for side, color, shift in zip(SIDES, COLOURS, (-0.15, 0.15), strict=False):
                    mean, (low, high) = (found[side]["mean"] - start) / width, (found[side]["interval"] - start) / width
                    label = {"etude": "etude", "sb3": "Stable-Baselines3"}[side]
                    span = [[mean - low], [high - mean]]
                    panel.errorbar(mean, row + shift, xerr=span, fmt="o", markersize=4, color=color, label=label)
            finish(panel, algorithm.upper(), "return", steps=False)
            panel.set(xticks=[], yticks=range(len(environments)), yticklabels=environments)
            panel.invert_yaxis()
        legend(figure, "mean over the seeds, and its 95 % interval; each row from its lowest value to its highest")


def tell(summary: dict[str, dict]) -> None:
    """Print the table."""
    for task, found in summary.items():
        sides = (f"{side} {found[side]['mean']:g} {found[side]['interval']}" for side in SIDES)
        print(f"{task:<36} " + "   ".join(sides) + f"   better: {found['better']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a Python that has requirements-peers.txt; without it, etude's side alone")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=list(SIDES))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as ppo/Hopper-v5/sb3/3")
    parser.add_argument("--list", action="store_true", help="tell what would be run, and run nothing")
    parser.add_argument("--plot", action="store_true", help="draw what is there, and run nothing")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, environment, _, seed = options.cell.split("/")
        measure.answer(train(algorithm, environment, int(seed)))
        return
    table = Table()
    if options.plot:
        draw(table.summary(), Path(__file__).with_suffix(".png"))
        return
    sides = [side for side in options.sides if side == "etude" or options.peers]
    cells = [f"{task}/{side}/{seed}" for seed in options.seeds for task in tasks() for side in sides]
    wanted = [key for key in cells if any(part in key for part in options.only) and key not in table.cells]
    hours = sum(map(seconds_of, wanted)) / options.jobs / 3600
    print(f"{len(wanted)} cells to run, about {hours:.1f} hours with {options.jobs} at a time", flush=True)
    if options.list:
        print("\n".join(f"{key:<44} {seconds_of(key):>5} s" for key in wanted))
        return

    def keep(key: str, found: dict) -> None:
        table.add(key, found)
        print(f"{key:<44} {found['return']:>8g}  {found['seconds']:.0f} s", flush=True)

    failed = measure.run_cells(wanted, options.jobs, functools.partial(cell, peers=options.peers), keep)
    tell(table.summary())
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
