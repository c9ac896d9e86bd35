"""Several agents on tasks of MPE: what they earn after 10,000 environment steps (400 episodes), summed over the agents.

`python benchmarks/multi_agent.py --seeds 1 2 3` writes multi_agent.json, cell by cell; a cell that is there with the
same hyperparameters is not run again. `--only maddpg` takes what holds the text. Evaluated on 400 episodes, with the
most probable actions. Presets, with the hyperparameters of peers_maddpg.py, whose figures are of AgileRL's MADDPG. DQN
and PPO have the same networks, rates and discount. The returns of training are kept beside it, see curves.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import curves
import measure
import numpy as np
from peers_maddpg import BATCH, GAMMA, HIDDEN, RATE

import etude
from etude.checkpoint.config_json import to_json
from etude.envs import make_environments
from etude.training.description import config_for

STEPS, JUDGED = 10_000, 400
AT_RANDOM = 2_000  # episodes: what they earn varies by three quarters of the mean
TASKS = ("mpe2:simple_speaker_listener_v4", "mpe2:simple_spread_v3")
INDEPENDENT: dict[str, Any] = {"network": etude.Mlp((HIDDEN, HIDDEN)), "learning_rate": RATE, "gamma": GAMMA}
REPLAYED: dict[str, Any] = {"batch_size": BATCH, "learning_starts": BATCH, "train_every": 25, "gradient_steps": 25}
ROLLED: dict[str, Any] = {
    "rollout_length": 128,
    "minibatch_size": None,
    "epochs": 4,
    "normalize_observation": False,
    "normalize_reward": False,
}
ALGORITHMS = ("mappo", "maddpg", "matd3", "qmix", "vdn")
ROWS: dict[str, tuple[str, Any]] = {
    "dqn, each its own": (
        "dqn",
        etude.algorithms.DQNConfig(**INDEPENDENT, **REPLAYED, target_update_every=100, n_step=1),
    ),
    "ppo, each its own": ("ppo", etude.algorithms.PPOConfig(**INDEPENDENT, **ROLLED)),
    **{name: (name, config_for(name, TASKS[0])) for name in ALGORITHMS},
}
RANDOM = "random"


def trained(name: str, task: str, engine: str, seed: int, steps: int) -> dict:
    """One cell."""
    algorithm, config = ROWS[name]
    began, own, curve = time.perf_counter(), etude.Policies("each"), curves.Training(steps)
    with etude.Run(
        algorithm, task, config=config, policies=own, seed=seed, engine=engine, execution=etude.Execution(device="cpu")
    ) as run:
        run.train(steps, callbacks=[curve])
        seconds = time.perf_counter() - began
        score = run.evaluate(episodes=JUDGED).mean
    if name in ALGORITHMS and steps == STEPS:
        curves.keep(name, task, engine, str(seed), curve.rows())
    return {"return": measure.significant(score, 4), "seconds": round(seconds, 1), "config": to_json(config)}


def at_random(task: str, seed: int) -> dict:
    """What uniformly random actions earn."""
    environments = make_environments(task, np.arange(10), run_seed=seed)
    rng, ended, total = np.random.default_rng(seed), 0, 0.0
    environments.reset()
    while ended < AT_RANDOM:
        choices = environments.spaces.action.nvec
        *_, final = environments.step(rng.integers(0, choices, (10, len(choices))))
        total += float(environments.scores.sum())
        ended += len(final)
    environments.close()
    return {"return": measure.significant(total / ended, 4)}


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """The mean over seeds of every row."""
    rows: dict[str, list[float]] = {}
    for key, cell in cells.items():
        rows.setdefault(key.rpartition("/")[0], []).append(cell["return"])
    return {
        name: {"mean": measure.significant(statistics.mean(found), 4), "seeds": len(found)}
        for name, found in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", default="", help="take the rows whose name, 'maddpg/mpe2:...', holds this")
    parser.add_argument("--engine", default="jax", choices=("jax", "torch", "tensorflow"))
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    cells: dict[str, dict] = measure.read(__file__).get("cells", {})
    for task in TASKS:
        for name in (RANDOM, *ROWS):
            for seed in options.seeds:
                key = f"{name}/{task}/{options.engine}/{options.steps}/{seed}"
                if options.only not in key:
                    continue
                known = cells.get(key)
                if known is not None and (name == RANDOM or known["config"] == to_json(ROWS[name][1])):
                    continue
                if name == RANDOM:
                    cells[key] = at_random(task, seed)
                else:
                    cells[key] = trained(name, task, options.engine, seed, options.steps)
                print(key, cells[key]["return"], cells[key].get("seconds", ""), flush=True)
                measure.write(__file__, {"cells": cells, "summary": summary(cells)})


if __name__ == "__main__":
    main()
