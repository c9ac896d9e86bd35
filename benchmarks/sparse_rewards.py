"""Do intrinsic rewards find a reward that undirected exploration does not? PPO on the deep sea of 10 x 10 cells, with
RND, with ICM, and with neither, five seeds, all with their defaults.

`python benchmarks/sparse_rewards.py --jobs 2` writes sparse_rewards.json, cell by cell, and draws
docs/figures/sparse_rewards.svg; a cell that is there is not run again. `--only rnd/` takes what holds the text. A cell
is the share of the last 200 training episodes that reached the reward, after every 2,048 environment steps.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from pathlib import Path

import measure

from etude.checkpoint.config_json import to_json
from etude.examples.deep_sea import DeepSea
from etude.report.pictures import COLOURS, GREY, finish, legend, picture
from etude.rewrite import ICM, RND

STEPS, EVERY, WINDOW, SIZE = 40_960, 2_048, 200, 10
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "sparse_rewards.svg"
REWRITE = {"none": None, "icm": ICM(), "rnd": RND()}


def train(intrinsic: str, seed: int) -> dict:
    """One cell, in this process."""
    import etude
    from etude.base.events import Collected

    began, reached, curve = time.perf_counter(), [], []
    settings = {"environments": 8, "seed": seed, "engine": "torch", "device": "cpu", "rewrite": REWRITE[intrinsic]}
    with etude.Run("ppo", etude.Environment(DeepSea, args={"size": SIZE}), **settings) as run:
        for event in run.steps(STEPS):
            if isinstance(event, Collected):
                reached += [episode.total > 0.5 for episode in event.episodes]
                if event.step % EVERY == 0:
                    curve.append(statistics.mean(reached[-WINDOW:]))
        evaluated = run.evaluate(10).mean
    found = {"reached": curve[-1], "evaluated": measure.significant(evaluated), "episodes_with_reward": sum(reached)}
    return {**found, "curve": [round(value, 3) for value in curve], "seconds": round(time.perf_counter() - began, 1)}


def config_of(intrinsic: str) -> dict:
    """What a cell is measured with, as plain data."""
    rewrite = REWRITE[intrinsic]
    return {"steps": STEPS, "size": SIZE, "rewrite": None if rewrite is None else to_json(rewrite)}


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """Over seeds."""
    found = {}
    for name in REWRITE:
        those = [cell for key, cell in cells.items() if key.startswith(f"{name}/")]
        if those:
            solved = sum(cell["reached"] > 0.5 for cell in those)
            reached = measure.significant(statistics.mean(cell["reached"] for cell in those))
            found[name] = {"solved": solved, "reached": reached, "seeds": len(those)}
    return found


def draw(cells: dict[str, dict]) -> None:
    """The curves of all cells."""
    with picture(FIGURE) as figure:
        axes = figure.subplots()
        for name, colour in zip(REWRITE, (GREY, *COLOURS), strict=False):
            curves = [cell["curve"] for key, cell in cells.items() if key.startswith(f"{name}/")]
            steps = [EVERY * (i + 1) for i in range(STEPS // EVERY)]
            for curve in curves:
                axes.plot(steps, curve, color=colour, alpha=0.3, linewidth=1)
            if curves:
                label = "PPO" if name == "none" else f"PPO with {name.upper()}"
                axes.plot(steps, [statistics.mean(at) for at in zip(*curves, strict=True)], color=colour, label=label)
        finish(axes, "A reward only at the end", "environment steps", "episodes with the reward")
        axes.set_ylim(-0.03, 1.03)
        legend(figure, "share of the episodes: mean over the seeds (thin: each)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as rnd/1")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        intrinsic, seed = options.cell.split("/")
        measure.answer(train(intrinsic, int(seed)))
        return
    held, configs = measure.read(__file__), {name: config_of(name) for name in REWRITE}
    same = [name for name in REWRITE if held.get("configs", {}).get(name) == configs[name]]
    cells = {key: cell for key, cell in held.get("cells", {}).items() if key.split("/")[0] in same}
    wanted = [f"{name}/{seed}" for name in reversed(REWRITE) for seed in options.seeds]
    wanted = [key for key in wanted if key not in cells and any(part in key for part in options.only)]

    def keep(key: str, cell: dict) -> None:
        cells[key] = cell
        measure.write(__file__, {"configs": configs, "summary": summary(cells), "cells": dict(sorted(cells.items()))})
        print(f"{key:<8} reached {cell['reached']:.2f}, evaluated {cell['evaluated']:g}", flush=True)

    run_one = functools.partial(measure.cell, "sparse_rewards.py", timeout=3600)
    measure.run_cells(wanted, options.jobs, run_one, keep)
    draw(cells)


if __name__ == "__main__":
    main()
