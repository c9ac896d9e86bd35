"""Does every algorithm learn? Preset hyperparameters, five seeds, 20 episodes of evaluation after the last step.

`python benchmarks/learning.py --jobs 2` writes learning.json, cell by cell; a cell that is there with the same
hyperparameters is not run again. `--only dqn/CartPole` takes what holds the text; `--more` adds what has no bar,
`--long` what takes more than half an hour. The returns of training are kept beside it, see curves.py. GAIL and AIRL are
shown 10 episodes of `etude.examples.experts.balance`.

`--device cuda` learns on a GPU. `--into FILE --within SECONDS`, on a machine that is there for a while, appends cells
to a file of JSON lines, those too that the time was too short for; `--add FILE` puts the whole ones into the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import curves
import measure

from etude import presets
from etude.algorithms import find
from etude.checkpoint.config_json import to_json
from etude.presets import WITHOUT_VELOCITIES

ENGINES = ("jax", "tensorflow", "torch")
EPISODES = 20
IMITATORS, SHOWN = ("gail", "airl"), 10


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: the mean over seeds of the evaluated return is to be at least `bar`."""

    algorithm: str
    environment: str
    bar: float | None
    engines: tuple[str, ...] = ("jax",)

    @property
    def task(self) -> str:
        """What has one set of hyperparameters."""
        return f"{self.algorithm}/{self.environment}"

    def lines(self) -> list[str]:
        """What has one mean: the task with each engine. A cell is `line/seed`."""
        return [f"{self.task}/{engine}" for engine in self.engines]


TABLE = (
    Row("dqn", "CartPole-v1", 475, ENGINES),
    Row("ppo", "CartPole-v1", 475, ENGINES),
    Row("a2c", "CartPole-v1", 475),
    Row("a3c", "CartPole-v1", 475),
    Row("appo", "CartPole-v1", 475),
    Row("es", "CartPole-v1", 475),
    Row("impala", "CartPole-v1", 475),
    Row("pqn", "CartPole-v1", 475),
    Row("reinforce", "CartPole-v1", 475),
    Row("v_mpo", "CartPole-v1", 475),
    Row("sac", "Pendulum-v1", -200, ENGINES),
    Row("ddpg", "Pendulum-v1", -200),
    Row("td3", "Pendulum-v1", -200),
    Row("td3", "HalfCheetah-v5", 5_000),
    Row("sac", "HalfCheetah-v5", 4_500),
    Row("ppo", "HalfCheetah-v5", 1_443),  # the three bars: CleanRL's means on v4, docs/rl-algorithms/ppo.md
    Row("ppo", "Hopper-v5", 2_383),
    Row("ppo", "Walker2d-v5", 2_288),
    Row("mpo", "Pendulum-v1", -200),
    Row("td_mpc2", "Pendulum-v1", -200),
    Row("pets", "Pendulum-v1", -200),
    Row("categorical_sac", "Pendulum-v1", -200),
    Row("tqc", "Pendulum-v1", -157),
    Row("tqc", "HalfCheetah-v5", 6_069),  # SAC's mean
    Row("crossq", "Pendulum-v1", -200),
    Row("crossq", "HalfCheetah-v5", 6_069),  # SAC's mean
    Row("crossq", "Hopper-v5", 1_484),  # SAC's mean
    Row("crossq", "Walker2d-v5", 946),  # SAC's mean
    Row("sac", "Hopper-v5", None),
    Row("sac", "Walker2d-v5", None),
    Row("discrete_sac", "CartPole-v1", 475),
    Row("dqn", "MountainCar-v0", -105),
    Row("ppo", "Acrobot-v1", -90),
    Row("dqn", "Acrobot-v1", -90),
    Row("dqn", "LunarLander-v3", 155),
    Row("ppo", "LunarLander-v3", 240),
    Row("c51", "CartPole-v1", 475),
    Row("qr_dqn", "CartPole-v1", 475),
    Row("rainbow", "CartPole-v1", 475),
    Row("apex_dqn", "CartPole-v1", 475),
    Row("qr_dqn", "Acrobot-v1", -75),
    Row("rainbow", "LunarLander-v3", 192),
    Row("sac", "MountainCarContinuous-v0", 90),
    Row("apex_ddpg", "Pendulum-v1", -200),
    Row("recurrent_ppo", WITHOUT_VELOCITIES, 475),
    Row("dreamer_v3", "CartPole-v1", 475),
    Row("dreamer_v3", WITHOUT_VELOCITIES, 475),
    Row("r2d2", WITHOUT_VELOCITIES, 475),
    Row("gail", "CartPole-v1", 475),
    Row("airl", "CartPole-v1", 475),
    Row("qmix", "etude.examples.two_step_game:TwoStepGame", 16),  # 8 for each of two agents; sums of values find 7
    Row("vdn", "etude.examples.two_step_game:TwoStepGame", 14),
    Row("trpo", "CartPole-v1", 475),
    Row("ars", "CartPole-v1", 475),
    Row("ars", "Swimmer-v5", 300),
    Row("trpo", "Pendulum-v1", -200),
    Row("trpo", "Swimmer-v5", 300),
)
LONG = (
    Row("sac", "LunarLanderContinuous-v3", 260),
    Row("sac", "BipedalWalker-v3", 295),
    Row("tqc", "LunarLanderContinuous-v3", 278),
)
MORE = (
    Row("ppo", "Pendulum-v1", None),
    Row("ppo", "MountainCar-v0", None),
    Row("ppo", "MountainCarContinuous-v0", None),
    Row("ppo", "LunarLanderContinuous-v3", None),
)


def train(algorithm: str, environment: str, engine: str, seed: int, device: str, until: float) -> dict:
    """One cell, in this process. until: the time of day, in seconds, at which it stops learning."""
    import etude

    steps = presets.lookup(algorithm, environment).steps
    began = time.perf_counter()
    run = etude.Run(
        algorithm,
        environment,
        data=shown(algorithm, environment),
        seed=seed,
        engine=engine,
        execution=etude.Execution(device=device),
    )
    curve = curves.Training(steps)
    for event in run.steps(steps):
        curve(event)
        if time.time() >= until:
            run.stop()
    seconds = time.perf_counter() - began
    found = run.evaluate(episodes=EPISODES)
    taken = run.step
    run.close()
    return {
        "return": measure.significant(found.mean, 5),
        "steps": min(taken, steps),
        "seconds": round(seconds, 1),
        "curve": curve.rows(),
        **({} if device == "cpu" else {"device": device}),
    }


def shown(algorithm: str, environment: str) -> Any:
    """The episodes that an imitator is shown; None for the others."""
    from etude.examples.experts import balance, play

    return play(balance, environment, SHOWN) if algorithm in IMITATORS else None


def config_of(algorithm: str, environment: str) -> dict:
    """All hyperparameters of a cell, as plain data."""
    preset = presets.lookup(algorithm, environment)
    return {"environments": preset.environments, **to_json(find(algorithm)[1](**preset.config))}


class Table:
    """The JSON file: cells by name, hyperparameters once for each algorithm and environment."""

    def __init__(self) -> None:
        held = measure.read(__file__)
        self.cells: dict[str, dict] = held.get("cells", {})
        self.configs: dict[str, dict] = held.get("configs", {})

    def has(self, row: Row, key: str) -> bool:
        config = config_of(row.algorithm, row.environment)
        if row.task not in self.configs or measure.with_new_fields(row.algorithm, self.configs[row.task]) != config:
            self.cells = {key: cell for key, cell in self.cells.items() if not key.startswith(f"{row.task}/")}
            self.configs[row.task] = config
        return key in self.cells

    def add(self, key: str, cell: dict) -> None:
        curves.keep(*key.split("/"), cell["curve"])
        self._take_over(key.rsplit("/", 2)[0])
        self.cells[key] = {"versions": measure.versions()} | {name: x for name, x in cell.items() if name != "curve"}
        ordered = dict(sorted(self.cells.items()))
        held = {"configs": self.configs, "summary": self.summary(), "not_run": self.not_run(), "cells": ordered}
        measure.write(__file__, held)

    def add_file(self, path: Path) -> None:
        """The cells of a file of `--into` that took all their steps, with the hyperparameters of today."""
        rows = {row.task: row for row in (*TABLE, *LONG, *MORE)}
        for line in path.read_text().splitlines():
            cell = json.loads(line)
            key, config = cell.pop("key"), cell.pop("config")
            task = key.rsplit("/", 2)[0]
            self.has(rows[task], key)
            whole = cell["steps"] == presets.lookup(*task.split("/")).steps
            taken = whole and config == measure.with_new_fields(rows[task].algorithm, self.configs[task])
            if taken:
                self.add(key, cell)
            print(f"{key:<44} {'added' if taken else 'left out'}")

    def _take_over(self, own: str) -> None:
        """What other processes have added to the file; of `own`, a line of the table, only with the same config."""
        held = measure.read(__file__)
        same = held.get("configs", {}).get(own) == self.configs[own]
        cells = {key: cell for key, cell in held.get("cells", {}).items() if same or not key.startswith(f"{own}/")}
        self.cells = self.cells | cells
        self.configs = self.configs | held.get("configs", {}) | {own: self.configs[own]}

    def summary(self) -> dict[str, dict]:
        """Mean, lowest and highest over the seeds that are there."""
        found = {}
        for row in (*TABLE, *LONG, *MORE):
            for line in row.lines():
                returns = [cell["return"] for key, cell in self.cells.items() if key.rsplit("/", 1)[0] == line]
                if returns:
                    mean = statistics.mean(returns)
                    found[line] = {
                        "mean": measure.significant(mean),
                        "lowest": min(returns),
                        "highest": max(returns),
                        "seeds": len(returns),
                        "bar": row.bar,
                        "reached": row.bar is None or mean >= row.bar,
                        "within_a_tenth": row.bar is None or mean >= row.bar - 0.1 * abs(row.bar),
                    }
        return found

    def not_run(self) -> dict[str, dict]:
        """The long lines without a cell: their bars, and the commands that would run them."""
        run = {key.rsplit("/", 1)[0] for key in self.cells}
        return {
            line: {
                "bar": row.bar,
                "steps": presets.lookup(row.algorithm, row.environment).steps,
                "command": f"python benchmarks/learning.py --long --only {row.task}",
            }
            for row in LONG
            for line in row.lines()
            if line not in run
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as ppo/CartPole-v1/jax/3")
    parser.add_argument("--more", action="store_true", help="also the presets that have no bar")
    parser.add_argument("--long", action="store_true", help="also what takes more than half an hour a seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds, after which all cells stop")
    parser.add_argument("--into", type=Path, help="append cells to this file, and leave the table as it is")
    parser.add_argument("--add", type=Path, help="put the cells of such a file into the table, and run nothing")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        key, device, until = options.cell.split(",")
        algorithm, environment, engine, seed = key.split("/")
        measure.answer(train(algorithm, environment, engine, int(seed), device, float(until)))
        return
    table, until = Table(), time.time() + options.within
    if options.add:
        table.add_file(options.add)
        return
    rows = (*TABLE, *(MORE if options.more else ()), *(LONG if options.long else ()))
    cells = [(row, f"{line}/{seed}") for seed in options.seeds for row in rows for line in row.lines()]
    wanted = [key for row, key in cells if any(part in key for part in options.only) and not table.has(row, key)]
    print(f"{len(wanted)} cells to run", flush=True)
    # Without a GPU, JAX is not to look for one; with one, several cells share it.
    variables = {"JAX_PLATFORMS": "cpu"} if options.device == "cpu" else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def run(key: str) -> dict:
        if time.time() >= until:
            return {}
        return measure.cell("learning.py", f"{key},{options.device},{until}", **variables)

    def keep(key: str, cell: dict) -> None:
        if not cell:
            print(f"{key:<44} not begun", flush=True)
            return
        if options.into is None:
            table.add(key, cell)
        else:
            held = {"key": key, "config": config_of(*key.split("/")[:2]), "versions": measure.versions(), **cell}
            with options.into.open("a") as file:
                file.write(json.dumps(held) + "\n")
        print(f"{key:<44} {cell['return']:>8g} after {cell['steps']:,} steps, {cell['seconds']:.0f} s", flush=True)

    failed = measure.run_cells(wanted, options.jobs, run, keep)
    if options.into is not None:
        raise SystemExit(f"Failed: {', '.join(failed)}" if failed else 0)
    for name, found in table.summary().items():
        spread = f"{found['lowest']:g} to {found['highest']:g}, {found['seeds']} seeds"
        verdict = "" if found["bar"] is None else f"bar {found['bar']:g}: {'reached' if found['reached'] else 'MISSED'}"
        print(f"{name:<44} {found['mean']:>8g}  ({spread})  {verdict}")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
