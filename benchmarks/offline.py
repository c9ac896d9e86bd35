"""Does learning from recorded data beat the data? Presets, five seeds, 20 episodes of evaluation after the last step.

`python benchmarks/offline_data.py` first. `python benchmarks/offline.py --jobs 2` writes offline.json, cell by cell; a
cell that is there with the same hyperparameters is not run again. `--only cql/Pendulum` takes what holds the text. For
the curves, see curves.py, every tenth of a run is evaluated; its seconds are with that.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

import curves
import measure
from offline_data import path_of

from etude import presets
from etude.algorithms import find
from etude.checkpoint.config_json import to_json

EPISODES = 20
ALGORITHMS = {"CartPole-v1": ("bc", "cql", "iql", "marwil"),
              "Pendulum-v1": ("awac", "bc", "cal_ql", "cql", "iql", "marwil", "rebrac", "td3_bc")}  # fmt: skip
# Where the presets, which are for mediocre data, do not fit: the better the data, the nearer to it.
FOR_GOOD = {"cql/CartPole-v1": {"cql_alpha": 20.0},
            "cql/Pendulum-v1": {"cql_alpha": 20.0, "gamma": 0.99, "tau": 0.005, "steps": 10_000}}  # fmt: skip
BARS = {"CartPole-v1": 475.0, "Pendulum-v1": -250.0}  # for bc and cql on good data
ROWS = [
    f"{algorithm}/{environment}/{kind}"
    for environment, algorithms in ALGORITHMS.items()
    for kind, those in (("mediocre", algorithms), ("good", ("bc", "cql")))
    for algorithm in those
]


def train(algorithm: str, environment: str, kind: str, seed: int) -> dict:
    """One cell, in this process."""
    import etude

    config, steps = settings(algorithm, environment, kind)
    data, curve, began = path_of(environment, kind), curves.Evaluations(), time.perf_counter()
    with etude.Run(algorithm, environment, config=config, data=data, seed=seed, engine="jax", device="cpu") as run:
        run.train(steps, callbacks=[curve], evaluate_every=steps // 10, evaluate_episodes=EPISODES)
        seconds = time.perf_counter() - began
    rows = curve.rows()
    return {"return": rows[-1][1], "steps": steps, "seconds": round(seconds, 1), "curve": rows}


def behaviour() -> dict[str, float]:
    """The mean return of the episodes in each file."""
    from etude import offline

    return {
        f"{environment}/{kind}": measure.significant(offline.read(path_of(environment, kind)).returns.mean(), 5)
        for environment in ALGORITHMS
        for kind in ("random", "mediocre", "good")
    }


def settings(algorithm: str, environment: str, kind: str) -> tuple[Any, int]:
    """The config of a cell, and its gradient steps."""
    preset = presets.lookup(algorithm, environment)
    changed = dict(FOR_GOOD.get(f"{algorithm}/{environment}", {})) if kind == "good" else {}
    steps = changed.pop("steps", preset.steps)
    return find(algorithm)[1](**{**preset.config, **changed}), steps


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
    held, data = measure.read(__file__), behaviour()
    configs = {row: config_of(row) for row in ROWS}
    same = data == held.get("behaviour")
    before = {row: measure.with_new_fields(row.split("/")[0], found) for row, found in held.get("configs", {}).items()}
    cells = {
        key: cell
        for key, cell in held.get("cells", {}).items()
        if same and before.get(key.rsplit("/", 1)[0]) == configs.get(key.rsplit("/", 1)[0])
    }
    wanted = [f"{row}/{seed}" for seed in options.seeds for row in ROWS]
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
