"""PPO and DQN in one environment: four CartPoles, two of them balanced by a policy of each algorithm.

`python benchmarks/policies.py --seeds 1 2 3` writes policies.json, seed by seed; a seed that is there is not run again.
Evaluated on 100 episodes with the best actions; the bar is a mean return of 450 for every agent. Hyperparameters are
those of the presets of CartPole-v1.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import measure

import etude
from etude.algorithms import DQN, PPO
from etude.checkpoint.config_json import to_json
from etude.training.description import config_for

ENV, STEPS, ENVIRONMENTS, EPISODES, BAR = "etude.examples.cart_pole:CartPoles", 50_000, 8, 100, 450.0
POLICIES = {"pole_0": "ppo", "pole_1": "ppo", "pole_2": "dqn", "pole_3": "dqn"}
CONFIGS = {name: config_for(name, "CartPole-v1") for name in ("ppo", "dqn")}


def trained(engine: str, steps: int, seed: int) -> dict[str, Any]:
    """One cell."""
    members = {"ppo": PPO(CONFIGS["ppo"]), "dqn": DQN(CONFIGS["dqn"])}
    setup: dict[str, Any] = {"environments": ENVIRONMENTS, "seed": seed, "engine": engine, "device": "cpu"}
    began = time.perf_counter()
    with etude.Run(members, ENV, policies=POLICIES, **setup) as run:
        run.train(steps)
        seconds = time.perf_counter() - began
        found = run.evaluate(episodes=EPISODES).mean_by_agent
    returns = {agent: measure.significant(mean) for agent, mean in found.items()}
    return {"returns": returns, "reached": min(found.values()) >= BAR, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--engine", default="jax", choices=("jax", "torch", "tensorflow"))
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    held, configs = measure.read(__file__), {name: to_json(config) for name, config in CONFIGS.items()}
    cells: dict[str, dict] = held.get("cells", {}) if held.get("configs") == configs else {}
    for seed in options.seeds:
        key = f"{options.engine}/{options.steps}/{seed}"
        if key not in cells:
            cells[key] = trained(options.engine, options.steps, seed)
            print(key, cells[key], flush=True)
            measure.write(__file__, {"configs": configs, "cells": cells})


if __name__ == "__main__":
    main()
