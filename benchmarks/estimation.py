"""Do off-policy estimates rank policies as their returns do?

`python benchmarks/estimation.py` writes estimation.json and estimation.svg. Ten checkpoints of one DQN on CartPole,
from its first steps to a solved task, each softened (a random action with probability 0.2), are estimated from episodes
of another policy: Boltzmann's over the values of a checkpoint in the middle. The truth is the mean discounted return of
200 simulated episodes. Reported: Spearman's correlation with the truth over the ten, for each method and each seed of
the data; and the gain of the behaviour itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude.estimation import EstimateRequest, Estimator, FQEConfig
from etude.explore import Boltzmann

METHODS = ("is", "pdis", "wis", "trajectory_wis", "dr", "wdr", "fqe", "simulation")
CHECKPOINTS = tuple(range(1_000, 10_001, 1_000))  # environment steps
BEHAVIOUR, TEMPERATURE, SOFTENED = 6_000, 10.0, 0.2
EPISODES, SIMULATED, MODEL = 300, 200, FQEConfig(steps=3_000)


def checkpoints(env: str) -> dict[int, dict[str, np.ndarray]]:
    """The weights after so many steps of one run."""
    found = {}
    with etude.Run("dqn", env, seed=0, engine="jax", execution=etude.Execution(device="cpu")) as run:
        for step in CHECKPOINTS:
            run.train(step - run.step)
            found[step] = run.engine.weights()
    return found


def estimates(run: Any, weights: dict[str, np.ndarray], request: EstimateRequest) -> dict[str, Any]:
    """Value, interval and effective episodes of every method."""
    run.engine.load(weights)
    found = Estimator(run, request)()
    return {
        name: {
            "value": measure.significant(each.value, 5),
            "interval": [measure.significant(each.low, 5), measure.significant(each.high, 5)],
            "effective episodes": measure.significant(each.effective_episodes, 4),
        }
        for name, each in found.items()
    }


def of_seed(env: str, held: dict[int, dict[str, np.ndarray]], seed: int, temperature: float) -> dict[str, Any]:
    """The estimates of all checkpoints from one recording, their correlations, and the behaviour's gain."""
    began = time.perf_counter()
    with etude.Run("dqn", env, seed=seed, engine="jax", execution=etude.Execution(device="cpu")) as run:
        run.engine.load(held[BEHAVIOUR])
        behaviour = Boltzmann(temperature)
        data = etude.record(env, EPISODES, run.actor(), behaviour, seed=seed)
        itself = Estimator(run, EstimateRequest(data, METHODS, explorer=behaviour, model=MODEL, episodes=SIMULATED))()
        request = EstimateRequest(data, METHODS, softened=SOFTENED, model=MODEL, episodes=SIMULATED)
        rows = {}
        for step, weights in held.items():
            rows[step] = estimates(run, weights, request)
            print(seed, step, {name: each["value"] for name, each in rows[step].items()}, flush=True)
    truth = [row["simulation"]["value"] for row in rows.values()]
    return {
        "behaviour": measure.significant(itself.behaviour, 5),
        "mean return": measure.significant(float(data.returns.mean()), 4),
        "gain of the behaviour": {name: measure.significant(each.gain, 4) for name, each in itself.items()},
        "spearman": {
            name: round(spearman([row[name]["value"] for row in rows.values()], truth), 3) for name in METHODS[:-1]
        },
        "seconds": round(time.perf_counter() - began, 1),
        "checkpoints": rows,
    }


def spearman(one: list[float], other: list[float]) -> float:
    """Spearman's correlation of ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def draw(seeds: dict[str, Any], path: Path) -> None:
    """Estimates over the truth, a panel for each method."""
    from matplotlib.figure import Figure

    shown = ("wis", "dr", "wdr", "fqe")
    figure = Figure(figsize=(3.2 * len(shown), 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(shown), sharey=True, sharex=True), shown, strict=True):
        for seed, found in seeds.items():
            rows = found["checkpoints"].values()
            truth = [row["simulation"]["value"] for row in rows]
            axes.plot(truth, [row[name]["value"] for row in rows], "o", markersize=4, label=f"data of seed {seed}")
        axes.plot([0, 100], [0, 100], color="0.6", linewidth=1)
        axes.set(title=name, xlabel="simulated", xlim=(0, 105), ylim=(0, 105))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("estimated")
    figure.axes[-1].legend(frameon=False, fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="of the behaviour")
    options = parser.parse_args()
    env = "CartPole-v1"
    held, seeds = checkpoints(env), {}
    for seed in options.seeds:
        seeds[str(seed)] = of_seed(env, held, seed, options.temperature)
        print(seed, seeds[str(seed)]["spearman"], seeds[str(seed)]["gain of the behaviour"], flush=True)
    settings = {"episodes": EPISODES, "softened": SOFTENED, "temperature": options.temperature,
                "behaviour": f"after {BEHAVIOUR} steps"}  # fmt: skip
    measure.write(__file__, {"settings": settings, "seeds": seeds})
    draw(seeds, Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
