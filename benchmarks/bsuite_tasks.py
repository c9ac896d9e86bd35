"""Four experiments of bsuite: catching, exploring deeply, remembering, swinging up.

`pip install bsuite`, then `python benchmarks/bsuite_tasks.py` writes bsuite_tasks.json: for each task and seed the mean
return of 100 greedy episodes after training, and the mean return of the training episodes, which is what bsuite scores.
Osband et al. 2020, Behaviour suite for reinforcement learning, arXiv:1908.03568.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import measure
import numpy as np

import etude
from etude.algorithms import find
from etude.explore import EpsilonZGreedy

SEEDS = (1, 2, 3)


class Task(gymnasium.Env):
    """An environment of bsuite, by its id, in Gymnasium's terms. An episode of the suite's own length is truncated
    where its last discount says that the world goes on.

    bonus: what is added to the reward, divided by the root of how often this observation was seen: exploration by
        counts. Strehl & Littman 2008, doi:10.1016/j.jcss.2007.08.009.
    returns: gets the return of each episode, bonuses left out.
    """

    def __init__(self, name: str, bonus: float, returns: list[float]):
        import bsuite

        self.bonus, self.returns, self.seen = bonus, returns, Counter()
        self.world = bsuite.load_from_id(name)
        shape = self.world.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (int(np.prod(shape)),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(int(self.world.action_spec().num_values))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.world._rng = np.random.RandomState(seed % 2**32)
        self.total = 0.0
        return self._seen(self.world.reset()), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self.world.step(int(action))
        over, observation, reward = step.last(), self._seen(step), float(step.reward)
        self.total += reward
        if over:
            self.returns.append(self.total)
        if self.bonus:
            self.seen[observation.tobytes()] += 1
            reward += self.bonus / self.seen[observation.tobytes()] ** 0.5
        return observation, reward, over and step.discount == 0, over and step.discount != 0, {}

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
    bonus: float = 0.0
    explorer: Any = None


GREEDY = {
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "batch_size": 64,
    "learning_starts": 500,
    "train_every": 4,
    "gradient_steps": 1,
    "n_step": 1,
    "network": etude.Mlp((64, 64)),
    "target_update_every": 100,
}
REMEMBERING = {
    "network": etude.Recurrent(etude.Mlp((32,)), 32),
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "epsilon": etude.Linear(1.0, 0.05, 0.3),
    "batch_size": 32,
    "learning_starts": 1_000,
    "train_every": 16,
    "target_update_every": 100,
    "burn_in": 0,
    "stored_state": False,
}
SWINGING = {
    **GREEDY,
    "network": etude.Mlp((128, 128)),
    "learning_rate": 5e-4,
    "batch_size": 128,
    "train_every": 2,
    "target_update_every": 200,
    "n_step": 5,
}
LASTING = EpsilonZGreedy(etude.Linear(1.0, 0.05, 0.2))
ROWS = [
    Row("catch/0", "dqn", {**GREEDY, "epsilon": etude.Linear(1.0, 0.05, 0.2)}, 50_000, 1.0),
    Row("deep_sea/0", "dqn", {**GREEDY, "epsilon": etude.Linear(1.0, 0.0, 0.1)}, 100_000, 0.99, bonus=0.1),
    *(
        Row(f"memory_len/{i}", "r2d2", {**REMEMBERING, "sequence_length": length + 2}, 100_000, 1.0, environments=8)
        for i, length in ((0, 1), (4, 5), (9, 10))
    ),
    Row("cartpole_swingup/0", "dqn", SWINGING, 400_000, 1000.0, explorer=LASTING),
]
EVALUATED, FIRST_RESET = 100, 1_000_000  # episodes, and the seed of the first of them


def train(row: Row, seed: int) -> dict:
    """One cell, in this process."""
    training, judged = [], []
    config = find(row.algorithm)[1](**row.config)
    made = partial(Task, row.task, row.bonus, training)
    options = {"config": config, "environments": row.environments, "explorer": row.explorer}
    with etude.Run(row.algorithm, made, engine="jax", seed=seed, **options) as run:
        run.train(row.steps)
        play(run.actor(), Task(row.task, 0.0, judged), seed)
    return {
        "return": measure.significant(statistics.mean(judged)),
        "while_training": measure.significant(statistics.mean(training)),
        "last_tenth": measure.significant(statistics.mean(training[-max(1, len(training) // 10) :])),
        "steps": row.steps,
    }


def play(actor: Any, task: Task, seed: int) -> None:
    """The episodes that judge, with the actions of the highest value."""
    for episode in range(EVALUATED):
        observation, over = task.reset(seed=FIRST_RESET + EVALUATED * seed + episode)[0], False
        state = np.zeros((1, actor.state_size), np.float32)
        while not over:
            given = (observation[None], state) if actor.state_size else (observation[None],)
            found = actor.act(*given)
            values, state = found if actor.state_size else (found, state)
            observation, _, terminated, truncated, _ = task.step(int(np.argmax(values[0])))
            over = terminated or truncated


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
