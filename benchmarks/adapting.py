"""Do rules repair bad hyperparameters? DQN with priorities on CartPole and PPO on LunarLander, begun from a learning
rate 10 times too high or too low or from batches of 8, with the rules below and without any, five seeds each.

`python benchmarks/adapting.py` writes adapting.json, cell by cell; what is there with the same config is not run again.
`--only dqn/ --seeds 1 2` takes what holds the text and some seeds, `--list` lists what is left to run, `--plot` draws
what is there into docs/figures/adapting.svg. Rules were chosen on seeds from 101 on (`--out` elsewhere), never on 1
to 5.

A cell is the mean return of 20 episodes with the best actions of the trained agent, and the mean return of all training
episodes, each weighted by its length: how well the run did on its way. Over the seeds: the interquartile mean, and its
95 % interval by resampling them. Agarwal et al. 2021, arXiv:2108.13264.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measure
import numpy as np

from etude.adapt import Adapt
from etude.algorithms import find
from etude.base.schedules import Linear
from etude.checkpoint.config_json import to_json
from etude.presets import lookup
from etude.report.pictures import COLOURS, GREY, finish, legend, picture

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "adapting.svg"
EPISODES, RESAMPLES = 20, 10_000
EVALUATION = 7_919  # added to a seed for the episodes of its evaluation
STARTS = ("preset", "rate x 10", "rate x 0.1", "batch 8")
FORMS = ("fixed", "adapted")
MEASURED = {"return": "the trained agent", "training": "while it trained"}


@dataclass(frozen=True)
class Task:
    """An algorithm on an environment. changes: of the preset's config. rules: what the adapted cells follow."""

    algorithm: str
    environment: str
    environments: int
    steps: int
    batch: str  # the name of the config's batch size
    changes: dict[str, Any]
    rules: tuple[Adapt, ...]


TASKS = {
    "dqn": Task(
        "dqn", "CartPole-v1", 1, 25_000, "batch_size",
        {"priority_exponent": 0.6, "learning_rate": 1e-3},  # constant: a rate that falls to 0 repairs itself
        (
            Adapt("noise_scale", "learning_rate", target=64.0, every=2, rate=0.2),
            Adapt("noise_scale", "batch_size", every=2, rate=0.5, low=8, high=256),
        ),
    ),
    "ppo": Task(
        "ppo", "LunarLander-v3", 8, 200_000, "minibatch_size",
        {"rollout_length": 512},
        (
            Adapt("kl", "learning_rate", target=0.01, every=1, rate=0.5, smooth=0.5),
            Adapt("noise_scale", "minibatch_size", every=1, rate=0.5, low=8, high=256),
        ),
    ),
}  # fmt: skip


def config_of(task: Task, start: str, form: str) -> Any:
    """The config of a cell."""
    fields = {**lookup(task.algorithm, task.environment).config, **task.changes}
    scale = {"rate x 10": 10.0, "rate x 0.1": 0.1}.get(start, 1.0)
    fields["learning_rate"] = scaled(fields["learning_rate"], scale)
    if start == "batch 8":
        fields[task.batch] = 8
    return find(task.algorithm)[1](**fields, adapt=task.rules if form == "adapted" else ())


def scaled(rate: float | Linear, by: float) -> float | Linear:
    """A learning rate, or its schedule, multiplied."""
    return replace(rate, start=rate.start * by, end=rate.end * by) if isinstance(rate, Linear) else rate * by


def train(task: Task, start: str, form: str, seed: int) -> dict:
    """One cell, in this process."""
    import gymnasium as gym

    import etude
    from etude.base.events import Adjusted, Collected

    began, last = time.perf_counter(), {}
    config = config_of(task, start, form)
    make = functools.partial(gym.make, task.environment)
    settings = {"environments": task.environments, "seed": seed, "engine": "jax", "device": "cpu"}
    changes, total, steps = 0, 0.0, 0
    with etude.Run(task.algorithm, make, config=config, **settings) as run:
        for event in run.steps(task.steps):
            if isinstance(event, Adjusted) and event.after != event.before:
                changes, last[event.name] = changes + 1, measure.significant(event.after)
            if isinstance(event, Collected):
                total += sum(end.total * end.length for end in event.episodes)
                steps += sum(end.length for end in event.episodes)
        found = run.evaluate(episodes=EPISODES, seed=seed + EVALUATION).mean
    seconds = round(time.perf_counter() - began, 1)
    training = measure.significant(total / max(steps, 1), 5)
    return {
        "return": measure.significant(found, 5), "training": training, "changes": changes, "last": last,
        "seconds": seconds,
    }  # fmt: skip


def interquartile_mean(returns: np.ndarray) -> np.ndarray:
    """Of the last axis: the mean of what is left without the lowest and the highest quarter, rounded down."""
    cut = returns.shape[-1] // 4
    ordered = np.sort(returns, -1)
    return ordered[..., cut : returns.shape[-1] - cut].mean(-1)


def described(returns: list[float]) -> dict:
    """The interquartile mean, and its 2.5th and 97.5th percentiles where the seeds are drawn again."""
    values = np.array(returns)
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(interquartile_mean(values[drawn]), (2.5, 97.5))
    mean = measure.significant(float(interquartile_mean(values)), 4)
    return {"iqm": mean, "interval": [measure.significant(float(x), 4) for x in (low, high)], "seeds": len(values)}


class Table:
    """The JSON file: cells by name, with the config that each was run with."""

    def __init__(self, place: Path):
        self._place = str(place)
        held = measure.read(self._place).get("cells", {})
        self.cells = {key: cell for key, cell in held.items() if cell["config"] == plain(key)}

    def add(self, key: str, found: dict) -> None:
        """Keep a cell."""
        self.cells[key] = {**found, "config": plain(key)}
        measure.write(self._place, {"summary": self.summary(), "cells": dict(sorted(self.cells.items()))})

    def summary(self) -> dict[str, dict]:
        """By task and start: both forms."""
        found: dict[str, dict] = {}
        for name in TASKS:
            for start in STARTS:
                for form in FORMS:
                    prefix = f"{name}/{start}/{form}/"
                    cells = [cell for key, cell in self.cells.items() if key.startswith(prefix)]
                    if cells:
                        of = {measured: described([cell[measured] for cell in cells]) for measured in MEASURED}
                        found.setdefault(f"{name}/{start}", {})[form] = of
        return found


def plain(key: str) -> dict[str, Any]:
    """What a cell is run with, as plain data."""
    name, start, form, _ = key.split("/")
    task = TASKS[name]
    return {"steps": task.steps, "environments": task.environments, **to_json(config_of(task, start, form))}


def draw(summary: dict[str, dict], path: Path) -> None:
    """Interquartile means and intervals, one panel for each task."""
    with picture(path, len(TASKS), len(MEASURED)) as figure:
        panels = figure.subplots(len(MEASURED), len(TASKS)).flat
        for (measured, of), (name, task) in itertools.product(MEASURED.items(), TASKS.items()):
            panel = next(panels)
            for shift, form, color in ((-0.12, "fixed", GREY), (0.12, "adapted", COLOURS[0])):
                for place, start in enumerate(STARTS):
                    if found := summary.get(f"{name}/{start}", {}).get(form, {}).get(measured):
                        mean, (low, high) = found["iqm"], found["interval"]
                        span = [[mean - low], [high - mean]]
                        panel.errorbar(place + shift, mean, span, fmt="o", color=color, capsize=4, label=form)
            finish(panel, f"{task.algorithm}, {task.environment}:\n{of}", up="return", steps=False)
            panel.set_xticks(range(len(STARTS)), STARTS)
        legend(figure, "IQM over the seeds, and its 95 % interval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as 'dqn/batch 8/adapted/3'")
    parser.add_argument("--out", type=Path, default=Path(__file__), help="the JSON file; adapting.json by default")
    parser.add_argument("--list", action="store_true", help="list what is left to run, and run nothing")
    parser.add_argument("--plot", action="store_true", help="draw what is there, and run nothing")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, start, form, seed = options.cell.split("/")
        measure.answer(train(TASKS[name], start, form, int(seed)))
        return
    table = Table(options.out)
    if options.plot:
        draw(table.summary(), FIGURE)
        return
    cells = [f"{t}/{s}/{f}/{seed}" for seed in options.seeds for t in TASKS for s in STARTS for f in FORMS]
    wanted = [key for key in cells if any(part in key for part in options.only) and key not in table.cells]
    print(f"{len(wanted)} cells to run", flush=True)
    if options.list:
        print("\n".join(wanted))
        return

    def keep(key: str, found: dict) -> None:
        table.add(key, found)
        returns = f"{found['return']:>8g} {found['training']:>8g}"
        print(f"{key:<32} {returns}  {found['last']}  {found['seconds']:.0f} s", flush=True)

    failed = measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "adapting.py"), keep)
    for key, found in table.summary().items():
        for form, of in found.items():
            print(f"{key:<16} {form:<8}", *(f"{name} {of[name]['iqm']:g} {of[name]['interval']}" for name in MEASURED))
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
