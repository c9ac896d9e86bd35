"""Do inner products with the embeddings of actions learn what a network with one output for each action does not?
CartPole-v1 whose actions change places at every step (`examples.cart_pole.WithShuffledActions`), among 10, 50 or 200
slots.

`python benchmarks/by_embedding.py --jobs 2` writes by_embedding.json, cell by cell; a cell that is there with the same
hyperparameters is not run again. `--only ppo/` takes what holds the text. A cell is the mean return of 20 evaluation
episodes after the last step, of at most 500. All hyperparameters are those of the presets for CartPole-v1; a plain
network sees the embeddings as part of its input. A network with an output for each slot has to learn every slot by
itself: with few of them it does. 200 slots were chosen on seeds 101 and 102 of the plain network.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import measure

ENVIRONMENT = "etude.examples.cart_pole:WithShuffledActions"
STEPS, EPISODES = 50_000, 20
ENGINE = "torch"
ROWS = [  # algorithm, network, slots
    "ppo/by_embedding/200", "dqn/plain/200", "ppo/by_embedding/50", "dqn/plain/50", "dqn/plain/10",
    "dqn/by_embedding/50",
]  # fmt: skip


def config_for(row: str):
    """The preset's config for CartPole-v1, with the network of a row."""
    import etude

    algorithm, network, _ = row.split("/")
    config = etude.config(algorithm, "CartPole-v1")
    if network == "plain":
        return config
    return etude.config(algorithm, "CartPole-v1", network=etude.ByEmbedding(network=config.network))


def train(row: str, seed: int) -> dict:
    """One cell, in this process."""
    import etude
    from etude import presets

    (algorithm, _, slots), began = row.split("/"), time.perf_counter()
    environments = presets.lookup(algorithm, "CartPole-v1").environments
    setup = {"seed": seed, "engine": ENGINE, "device": "cpu", "environments": environments}
    setup["env_args"] = {"slots": int(slots)}
    with etude.Run(algorithm, ENVIRONMENT, config=config_for(row), **setup) as run:
        run.train(STEPS)
        seconds = time.perf_counter() - began
        found = statistics.mean(run.evaluate(episodes=EPISODES).returns)
    return {"return": measure.significant(found), "seconds": round(seconds, 1)}


def described(row: str) -> dict:
    """All hyperparameters of a cell, as plain data."""
    from etude.checkpoint.config_json import to_json

    return {"environment": ENVIRONMENT, "steps": STEPS, "engine": ENGINE, **to_json(config_for(row))}


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """Mean, lowest and highest return over seeds."""
    found = {}
    for row in ROWS:
        those = [cell["return"] for key, cell in cells.items() if key.rsplit("/", 1)[0] == row]
        if those:
            mean = measure.significant(statistics.mean(those))
            found[row] = {"return": mean, "lowest": min(those), "highest": max(those), "seeds": len(those)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as ppo/by_embedding/50/1")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        row, seed = options.cell.rsplit("/", 1)
        measure.answer(train(row, int(seed)))
        return
    held, configs = measure.read(__file__), {row: described(row) for row in ROWS}
    before = {row: measure.with_new_fields(row.split("/")[0], found) for row, found in held.get("configs", {}).items()}
    same = [row for row in ROWS if before.get(row) == configs[row]]
    cells = {key: cell for key, cell in held.get("cells", {}).items() if key.rsplit("/", 1)[0] in same}
    wanted = [f"{row}/{seed}" for seed in options.seeds for row in ROWS]
    wanted = [key for key in wanted if key not in cells and any(part in key for part in options.only)]

    def keep(key: str, cell: dict) -> None:
        cells[key] = cell
        measure.write(__file__, {"configs": configs, "summary": summary(cells), "cells": dict(sorted(cells.items()))})
        print(f"{key:<25} return {cell['return']:g}", flush=True)

    measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "by_embedding.py", timeout=3600), keep)


if __name__ == "__main__":
    main()
