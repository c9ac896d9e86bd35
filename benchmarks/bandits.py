"""How much do bandits lose while they learn? Cumulated regret of LinUCB and neural Thompson sampling, five seeds.

`python benchmarks/bandits.py` writes bandits.json. `bound` is what LinUCB cannot exceed with probability 0.9:
2 alpha (2 T K D log(1 + T / (K D lambda)))**0.5, where alpha is the radius of the confidence sets of Abbasi-Yadkori,
Pal & Szepesvari 2011, Improved algorithms for linear stochastic bandits, theorem 2, for each of K actions.
"""

from __future__ import annotations

import math
from functools import partial

import measure
import numpy as np

import etude
from etude.base.events import Collected
from etude.examples.contextual_bandit import LinearBandit

STEPS, SEEDS, NOISE, SIZE, ACTIONS = 2_000, 5, 0.1, 5, 4
TASKS = {"linear": 1, "squared": 2}
ALGORITHMS = {
    "lin_ucb": ("lin_ucb", {"alpha": 0.5}),
    "lin_ucb, thompson": ("lin_ucb", {"alpha": 0.5, "thompson": True}),
    "neural_ts": ("neural_ts", {"learning_rate": 0.01}),
    "neural_ts, no thompson": ("neural_ts", {"learning_rate": 0.01, "thompson": False}),
}


def regret(name: str, power: int, seed: int) -> float:
    """The regret of a run, summed over its steps. Each seed has a task of its own."""
    algorithm, settings = ALGORITHMS[name]
    task = partial(LinearBandit, SIZE, ACTIONS, NOISE, power, task_seed=seed)
    kept = etude.Execution(keep_info=("regret",), device="cpu")
    with etude.Run(algorithm, task, seed=seed, engine="torch", environments=1, execution=kept, **settings) as run:
        events = (event for event in run.steps(STEPS) if isinstance(event, Collected))
        return float(sum(steps.extras["info.regret"].sum() for event in events for steps in event.steps))


def bound(steps: int, ridge: float = 1.0, chance: float = 0.1) -> float:
    """See above; weights and contexts have the norm 1."""
    alpha = NOISE * math.sqrt(SIZE * math.log((1 + steps / ridge) * ACTIONS / chance)) + math.sqrt(ridge)
    size = ACTIONS * SIZE
    return 2 * alpha * math.sqrt(2 * steps * size * math.log(1 + steps / (size * ridge)))


def main() -> None:
    found = {}
    for task, power in TASKS.items():
        for name in ALGORITHMS:
            each = [measure.significant(regret(name, power, seed), 4) for seed in range(1, SEEDS + 1)]
            found[f"{task}/{name}"] = {"regret": each, "mean": measure.significant(float(np.mean(each)), 4)}
    held = {"steps": STEPS, "actions": ACTIONS, "size": SIZE, "noise": NOISE, "bound": round(bound(STEPS)), **found}
    measure.write(__file__, held)


if __name__ == "__main__":
    main()
