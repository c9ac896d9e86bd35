"""Does learning from recorded data beat the data? Presets, five seeds, 20 episodes of evaluation after the last step.

`python benchmarks/offline_data.py` first; rows whose data was not made are left out. `python benchmarks/offline.py
--jobs 2` writes offline.json, cell by cell; a cell that is there with the same hyperparameters is not run again.
`--only cql/Pendulum` takes what holds the text. For the curves, see curves.py, every tenth of a run is evaluated; its
seconds are with that. Rows on data of MuJoCo take few steps, and are no comparison with papers.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import curves
import measure
import numpy as np
from offline_data import MUJOCO, normalised, path_of

from etude import presets
from etude.algorithms import find
from etude.checkpoint.config_json import to_json
from etude.networks import Mlp

EPISODES = 20
ALGORITHMS = {
    "CartPole-v1/mediocre": ("bc", "cql", "iql", "marwil"),
    "CartPole-v1/good": ("bc", "cql"),
    "CartPole-v1/mixed": ("bc", "decision_transformer"),
    "Pendulum-v1/mediocre": (
        "awac",
        "bc",
        "cal_ql",
        "cql",
        "decision_transformer",
        "iql",
        "marwil",
        "rebrac",
        "td3_bc",
    ),
    "Pendulum-v1/good": ("bc", "cql"),
    "Pendulum-v1/mixed": ("bc", "decision_transformer"),
    "Reacher-v5/mediocre": ("bc", "edac"),
    **{f"{environment}/medium": ("bc", "iql", "td3_bc") for environment in MUJOCO},
}
ON_MUJOCO = 5_000, {"network": Mlp((64, 64)), "batch_size": 128, "learning_rate": 1e-3}
"""Gradient steps and hyperparameters on small data of MuJoCo; papers take 1,000,000 steps."""
# Where the presets, which are for mediocre data, do not fit: the better the data, the nearer to it.
FOR_GOOD = {"cql/CartPole-v1": {"cql_alpha": 20.0},
            "cql/Pendulum-v1": {"cql_alpha": 20.0, "gamma": 0.99, "tau": 0.005, "steps": 10_000}}  # fmt: skip
MIXED = ("random", "mediocre", "good")
"""Of the kind "mixed": these files together, as many transitions of each in a batch."""
TARGETS = {"CartPole-v1": (50, 100, 200, 300, 400), "Pendulum-v1": (-300, -600, -900, -1_200)}
"""Returns below the best that a Decision Transformer is asked for after training."""
BARS = {"CartPole-v1": 475.0, "Pendulum-v1": -250.0}  # for bc and cql on good data
ROWS = [f"{algorithm}/{data}" for data, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def train(algorithm: str, environment: str, kind: str, seed: int) -> dict:
    """One cell, in this process."""
    import etude

    config, steps = settings(algorithm, environment, kind)
    data: Any = {str(path): 1.0 for path in paths_of(environment, kind)}
    data = data if kind == "mixed" else next(iter(data))
    curve, began = curves.Evaluations(), time.perf_counter()
    with etude.Run(
        algorithm,
        environment,
        config=config,
        data=data,
        seed=seed,
        engine="jax",
        execution=etude.Execution(device="cpu"),
    ) as run:
        run.train(steps, callbacks=[curve], evaluate_every=steps // 10, evaluate_episodes=EPISODES)
        seconds = time.perf_counter() - began
        asked = asked_for(run, environment) if algorithm == "decision_transformer" else {}
    rows = curve.rows()
    return {"return": rows[-1][1], "steps": steps, "seconds": round(seconds, 1), "curve": rows, **asked}


def asked_for(run: Any, environment: str) -> dict[str, dict[str, float]]:
    """The mean return for each target."""
    import etude

    with tempfile.TemporaryDirectory() as folder:
        run.save(f"{folder}/run.etude")
        found = {}
        for target in TARGETS[environment]:
            with etude.load(f"{folder}/run.etude", target_return=float(target)) as own:
                found[str(target)] = measure.significant(own.evaluate(EPISODES).mean, 5)
    return {"asked": found}


def paths_of(environment: str, kind: str) -> list[Path]:
    """The files of a kind of data."""
    return [path_of(environment, each) for each in (MIXED if kind == "mixed" else (kind,))]


def behaviour() -> dict[str, float]:
    """The mean return of the episodes in each file that was made."""
    from etude import offline

    random = {f"{data.split('/')[0]}/random" for data in ALGORITHMS}
    files = {data: paths_of(*data.split("/")) for data in sorted({*ALGORITHMS, *random})}
    return {
        data: measure.significant(np.concatenate([offline.read(path).returns for path in paths]).mean(), 5)
        for data, paths in files.items()
        if all(path.exists() for path in paths)
    }


def settings(algorithm: str, environment: str, kind: str) -> tuple[Any, int]:
    """The config of a cell, and its gradient steps."""
    if environment in MUJOCO:
        steps, changed = ON_MUJOCO
        return find(algorithm)[1](**changed), steps
    preset = presets.lookup(algorithm, environment)
    changed = dict(FOR_GOOD.get(f"{algorithm}/{environment}", {})) if kind == "good" else {}
    steps = changed.pop("steps", preset.steps)
    return find(algorithm)[1](**{**preset.config, **changed}), steps


def known(row: str, data: dict[str, float]) -> float | None:
    """The mean return of the data of a row, where it was made."""
    return data.get(row.split("/", 1)[1])


def config_of(row: str) -> dict:
    """All hyperparameters of a cell, as plain data."""
    config, steps = settings(*row.split("/"))
    return {"steps": steps, **to_json(config)}


def summary(cells: dict[str, dict], data: dict[str, float]) -> dict[str, dict]:
    """Mean, lowest and highest over seeds; what is to be beaten, and whether it is."""
    found: dict[str, dict] = {}
    for row in ROWS:
        returns = [cell["return"] for key, cell in cells.items() if key.rsplit("/", 1)[0] == row]
        if returns:
            found[row] = {"mean": measure.significant(statistics.mean(returns)), "lowest": min(returns),
                          "highest": max(returns), "seeds": len(returns)}  # fmt: skip
    for row, line in found.items():
        algorithm, environment, kind = row.split("/")
        if kind == "good":
            line["bar"] = BARS[environment]
        elif algorithm in ("cql", "iql"):
            line["bar"] = max(data[f"{environment}/{kind}"], found.get(f"bc/{environment}/{kind}", line)["mean"])
        if (score := normalised(environment, line["mean"])) is not None:
            line["d4rl score"] = measure.significant(score, 3)
        if "bar" in line:
            line["reached"] = line["mean"] >= line["bar"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as cql/CartPole-v1/mediocre/3")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, environment, kind, seed = options.cell.split("/")
        measure.answer(train(algorithm, environment, kind, int(seed)))
        return
    held, made = measure.read(__file__), behaviour()
    configs = {row: config_of(row) for row in ROWS}
    data = {**held.get("behaviour", {}), **made}
    same = {row: known(row, data) == known(row, held.get("behaviour", {})) for row in ROWS}
    before = {row: measure.with_new_fields(row.split("/")[0], found) for row, found in held.get("configs", {}).items()}
    cells = {
        key: cell
        for key, cell in held.get("cells", {}).items()
        if same.get(row := key.rsplit("/", 1)[0]) and before.get(row) == configs.get(row)
    }
    wanted = [f"{row}/{seed}" for seed in options.seeds for row in ROWS if known(row, made) is not None]
    wanted = [key for key in wanted if key not in cells and any(part in key for part in options.only)]
    print(f"{len(wanted)} cells to run", flush=True)

    def keep(key: str, cell: dict) -> None:
        curves.keep(*key.split("/"), cell.pop("curve"))
        cells[key] = {**cell, "versions": measure.versions()}
        ordered = dict(sorted(cells.items()))
        told = {"behaviour": data, "configs": configs, "summary": summary(cells, data), "cells": ordered}
        measure.write(__file__, told)
        print(f"{key:<40} {cell['return']:>8g}  {cell['seconds']:.0f} s", flush=True)

    measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "offline.py", timeout=3600), keep)
    for row, line in summary(cells, data).items():
        print(f"{row:<36} {line['mean']:>8g}  bar {line.get('bar', '')} {line.get('reached', '')}")


if __name__ == "__main__":
    main()
