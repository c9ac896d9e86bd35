"""Does etude learn from images on a GPU? DQN and PPO on Pong for 1,000,000 frames (250,000 steps of four frames).

`python benchmarks/atari.py --device cuda --jobs 6` writes atari.json, cell by cell; curves.py keeps the returns of
training. PPO has the preset of Atari games. DQN has the hyperparameters of Lapan, Deep Reinforcement Learning Hands-On
(2nd edition, 2020), chapters 6 and 8, for Pong (double, dueling, three-step returns, a copy every 1,000), but eight
environments and a gradient step for two steps. `ALE/Pong-v5` repeats actions with probability 0.25; the returns are
those of the game, -21 to 21. `--within SECONDS` ends the training of a cell then: the steps that it took are kept.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import curves
import measure

import etude
from etude import presets
from etude.algorithms import find
from etude.base.schedules import Linear
from etude.checkpoint.config_json import to_json
from etude.networks import Conv

ENVIRONMENT, STEPS, EPISODES = "ALE/Pong-v5", 250_000, 10
CONFIGS = {
    "dqn": {
        "network": Conv(initializer="fan_in", dueling=True),
        "learning_rate": 1e-4,
        "gamma": 0.99,
        "double": True,
        "n_step": 3,
        "target_update_every": 1_000,
        "epsilon": Linear(1.0, 0.01, 100_000 / STEPS),
        "batch_size": 32,
        "buffer_size": 100_000,
        "learning_starts": 10_000,
        "train_every": 8,
        "gradient_steps": 4,
        "clip_reward": True,
    },
    "ppo": presets.lookup("ppo", ENVIRONMENT).config,
}
ENVIRONMENTS = {"dqn": 8, "ppo": presets.lookup("ppo", ENVIRONMENT).environments}


def train(algorithm: str, engine: str, seed: int, device: str, steps: int, within: float) -> dict:
    """One cell, in this process."""
    began, curve = time.perf_counter(), curves.Training(STEPS)
    options = {"environments": ENVIRONMENTS[algorithm], "seed": seed, "engine": engine, "device": device}
    with etude.Run(algorithm, ENVIRONMENT, config=find(algorithm)[1](**CONFIGS[algorithm]), **options) as run:
        for event in run.steps(steps):
            curve(event)
            if time.perf_counter() - began > within:
                break
        seconds = time.perf_counter() - began
        found = run.evaluate(episodes=EPISODES)
        return {
            "return": measure.significant(found.mean),
            "steps": run.step,
            "seconds": round(seconds, 1),
            "device": card(device),
            "curve": curve.rows(),
        }


def card(device: str) -> str:
    """The name of a GPU, or what was asked for."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() and device != "cpu" else device


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """Mean, lowest and highest over the seeds of each algorithm and engine."""
    lines: dict[str, list[float]] = {}
    for key, cell in cells.items():
        lines.setdefault(key.rpartition("/")[0], []).append(cell["return"])
    return {
        line: {
            "mean": measure.significant(statistics.mean(returns)),
            "lowest": min(returns),
            "highest": max(returns),
            "seeds": len(returns),
        }
        for line, returns in sorted(lines.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds of training of a cell at most")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, engine, seed, device, steps, within = options.cell.split(",")
        measure.answer(train(algorithm, engine, int(seed), device, int(steps), float(within)))
        return
    cells: dict[str, dict] = measure.read(__file__).get("cells", {})
    configs = {name: to_json(find(name)[1](**config)) for name, config in CONFIGS.items()}

    def keep(key: str, cell: dict) -> None:
        algorithm, engine, seed, *_ = key.split(",")
        curves.keep(algorithm, ENVIRONMENT.replace("/", "-"), engine, seed, cell.pop("curve"))
        cells[f"{algorithm}/{engine}/{seed}"] = cell | {"versions": measure.versions()}
        measure.write(__file__, {"configs": configs, "summary": summary(cells), "cells": dict(sorted(cells.items()))})
        print(f"{key:<40} {cell['return']:>6g} after {cell['steps']} steps, {cell['seconds']:.0f} s", flush=True)

    wanted = [
        f"{algorithm},{options.engine},{seed},{options.device},{options.steps},{options.within}"
        for seed in options.seeds
        for algorithm in options.algorithms
    ]
    if failed := measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "atari.py"), keep):
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
