"""Four experiments of bsuite: catching, exploring deeply, remembering, swinging up.

`pip install bsuite`, then `python benchmarks/bsuite_tasks.py` writes bsuite_tasks.json: for each task and seed the mean
return of 100 greedy episodes after training, and the mean return of the training episodes, which is what bsuite scores.
Osband et al. 2020, Behaviour suite for reinforcement learning, arXiv:1908.03568.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import measure
import numpy as np

import etude
from etude.algorithms import find
from etude.events import Collected

SEEDS = (1, 2, 3)


class Task(gymnasium.Env):
    """An environment of bsuite, by its id, in Gymnasium's terms. An episode of the suite's own length is truncated
    where its last discount says that the world goes on."""

    def __init__(self, name: str):
        import bsuite

        self.world = bsuite.load_from_id(name)
        shape = self.world.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (int(np.prod(shape)),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(int(self.world.action_spec().num_values))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.world._rng = np.random.RandomState(seed % 2**32)
        return self._seen(self.world.reset()), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self.world.step(int(action))
        over = step.last()
        return self._seen(step), float(step.reward), over and step.discount == 0, over and step.discount != 0, {}

    @staticmethod
    def _seen(step: Any) -> np.ndarray:
        return np.asarray(step.observation, np.float32).reshape(-1)


@dataclass(frozen=True)
class Row:
    """One task: how it is learned, in how many environment steps, and what the best policy earns in an episode."""

    task: str
    algorithm: str
    config: dict[str, Any]
    steps: int
    best: float
    environments: int = 1


GREEDY = {"learning_rate": 1e-3, "gamma": 0.99, "batch_size": 64, "warmup": 500, "learn_every": 4, "target_every": 100}
# Uniformly random actions find the treasure of a sea 10 deep once in 1,024 episodes; replay does not forget it.
EXPLORING = {**GREEDY, "epsilon": etude.Linear(1.0, 0.0, 0.8), "priority_exponent": 0.6}
REMEMBERING = {
    "network": etude.Recurrent(etude.Mlp((32,)), 32),
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "epsilon": etude.Linear(1.0, 0.05, 0.3),
    "batch_size": 32,
    "warmup": 1_000,
    "learn_every": 16,
    "target_every": 100,
    "burn_in": 0,
    "stored_memory": False,
}
ROWS = [
    Row("catch/0", "dqn", {**GREEDY, "epsilon": etude.Linear(1.0, 0.05, 0.2)}, 50_000, 1.0),
    Row("deep_sea/0", "dqn", EXPLORING, 100_000, 0.99),
    *(
        Row(f"memory_len/{i}", "r2d2", {**REMEMBERING, "sequence_length": length + 2}, 100_000, 1.0, environments=8)
        for i, length in ((0, 1), (4, 5), (9, 10))
    ),
    Row("cartpole_swingup/0", "dqn", {**GREEDY, "n_step": 5, "epsilon": etude.Linear(1.0, 0.05, 0.2)}, 300_000, 1000.0),
]
EVALUATED = 100  # episodes


def train(row: Row, seed: int) -> dict:
    """One cell, in this process."""
    returns: list[float] = []

    def collect(event: Any) -> None:
        if isinstance(event, Collected):
            returns.extend(end.total for end in event.episodes)

    config = find(row.algorithm)[1](**row.config)
    made = partial(Task, row.task)
    with etude.Run(row.algorithm, made, config=config, environments=row.environments, engine="jax", seed=seed) as run:
        run.train(row.steps, report=[collect])
        found = run.evaluate(episodes=EVALUATED).mean
    return {
        "return": measure.significant(found),
        "while_training": measure.significant(statistics.mean(returns)),
        "last_tenth": measure.significant(statistics.mean(returns[-max(1, len(returns) // 10) :])),
        "steps": row.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of tasks")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = {row.task: row for row in ROWS}
    if options.cell:
        task, _, seed = options.cell.rpartition(":")
        measure.answer(train(rows[task], int(seed)))
        return
    cells = [f"{task}:{seed}" for task in rows for seed in options.seeds if any(part in task for part in options.only)]

    def keep(cell: str, found: dict) -> None:
        task, _, seed = cell.rpartition(":")
        held = measure.read(__file__).get(task, {})
        about = {"algorithm": rows[task].algorithm, "best": rows[task].best}
        measure.write(__file__, {task: {**held, **about, seed: found}})
        print(f"{cell:<24} {found}", flush=True)

    if failed := measure.run_cells(cells, options.jobs, partial(measure.cell, "bsuite_tasks.py"), keep):
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
