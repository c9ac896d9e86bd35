"""Does hindsight experience replay reach goals that plain replay does not? Presets on the point world, three seeds.

`python benchmarks/hindsight.py --jobs 2` writes hindsight.json, cell by cell; a cell that is there with the same
hyperparameters is not run again. `--only ddpg/` takes what holds the text. A cell is the share of 100 evaluation
episodes that reach their goals after the last step, and their mean return: -50 where the goal is missed.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import measure
import numpy as np

from etude import presets
from etude.algorithms import find
from etude.checkpoint.config_json import to_json
from etude.examples.point import STEPS
from etude.presets import POINT

EPISODES = 100
ROWS = [f"{algorithm}/{hindsight}" for algorithm in ("ddpg", "td3", "sac") for hindsight in ("future", "none")]


def train(algorithm: str, hindsight: str, seed: int) -> dict:
    """One cell, in this process."""
    import etude

    steps, began = presets.lookup(algorithm, POINT).steps, time.perf_counter()
    with etude.Run(
        algorithm, POINT, hindsight=hindsight, seed=seed, engine="jax", execution=etude.Execution(device="cpu")
    ) as run:
        run.train(steps)
        seconds = time.perf_counter() - began
        returns = np.array(run.evaluate(episodes=EPISODES).returns)
    reached = float((returns > -STEPS).mean())
    mean = measure.significant(returns.mean())
    return {"reached": reached, "return": mean, "steps": steps, "seconds": round(seconds, 1)}


def config_of(row: str) -> dict:
    """All hyperparameters of a cell, as plain data."""
    algorithm, hindsight = row.split("/")
    preset = presets.lookup(algorithm, POINT)
    config = to_json(find(algorithm)[1](**{**preset.config, "hindsight": hindsight}))
    return {"environments": preset.environments, "steps": preset.steps, **config}


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """Means over seeds."""
    found = {}
    for row in ROWS:
        those = [cell for key, cell in cells.items() if key.rsplit("/", 1)[0] == row]
        if those:
            means = {name: measure.significant(statistics.mean(cell[name] for cell in those))
                     for name in ("reached", "return")}  # fmt: skip
            found[row] = {**means, "seeds": len(those)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as ddpg/future/1")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, hindsight, seed = options.cell.split("/")
        measure.answer(train(algorithm, hindsight, int(seed)))
        return
    held, configs = measure.read(__file__), {row: config_of(row) for row in ROWS}
    before = {row: measure.with_new_fields(row.split("/")[0], found) for row, found in held.get("configs", {}).items()}
    same = [row for row in ROWS if before.get(row) == configs[row]]
    cells = {key: cell for key, cell in held.get("cells", {}).items() if key.rsplit("/", 1)[0] in same}
    wanted = [f"{row}/{seed}" for seed in options.seeds for row in ROWS]
    wanted = [key for key in wanted if key not in cells and any(part in key for part in options.only)]

    def keep(key: str, cell: dict) -> None:
        cells[key] = cell
        ordered = dict(sorted(cells.items()))
        measure.write(__file__, {"configs": configs, "summary": summary(cells), "cells": ordered})
        print(f"{key:<16} reached {cell['reached']:.2f}, return {cell['return']:g}", flush=True)

    measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "hindsight.py", timeout=3600), keep)


if __name__ == "__main__":
    main()
