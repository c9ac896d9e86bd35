"""The measurements that the pages report: benchmarks/*.json, where there are some, and benchmarks/curves/*/*.csv."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import table, title

from etude.report.series import Series

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"
NOT_MEASURED = "Not measured yet.\n"
BETTER = {"etude": "etude", "sb3": "Stable-Baselines3", "neither": ""}


def read(name: str) -> dict[str, Any]:
    """The results of one measurement; {} where it was not made, or is being written."""
    try:
        return json.loads((BENCHMARKS / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}


def results(name: str) -> dict[str, Any]:
    """What a file holds, but for where it was measured, and single runs."""
    return {key: value for key, value in read(name).items() if key not in ("about", "cells")}


def learning(algorithm: str | None = None) -> str:
    """The learning table, of one algorithm or of all, with the return of every seed."""
    held = read("learning")
    rows = [
        [kind, environment, engine, f"{steps:,}", f"{found['mean']:g}", returns, _goal(found)]
        for (kind, environment, engine), found, steps, returns in _summaries(held, algorithm)
    ]
    rows += [
        [*name.split("/"), f"{row['steps']:,}", "not run", f"`{row['command']}`", f"{row['bar']:g}"]
        for name, row in held.get("not_run", {}).items()
        if algorithm in (None, name.split("/")[0])
    ]
    head = ["algorithm", "environment", "engine", "steps", "mean return", "each seed", "goal"]
    about = "The mean return of 20 episodes after the last step, on environments of their own.\n"
    return _of_one_or_all(head, rows, algorithm, about)


def defaults() -> str:
    """Defaults beside those of Stable-Baselines3, with the interval of each mean."""
    held = read("defaults")
    rows = []
    for task, found in held.get("summary", {}).items():
        sides = [found[side] for side in ("etude", "sb3")]
        shown = [f"{side['mean']:g} ({side['interval'][0]:g} to {side['interval'][1]:g})" for side in sides]
        steps = next(cell["steps"] for key, cell in held["cells"].items() if key.startswith(f"{task}/"))
        seeds = " and ".join(str(count) for count in dict.fromkeys(side["seeds"] for side in sides))
        rows.append([*task.split("/"), f"{steps:,}", *shown, seeds, BETTER[found["better"]]])
    head = ["algorithm", "environment", "steps", "etude", "Stable-Baselines3", "seeds", "better outside the intervals"]
    return table(head, rows) if rows else NOT_MEASURED


def offline(algorithm: str | None = None) -> str:
    """Returns after learning from recorded data, of one algorithm or of all, beside the returns in the data."""
    held = read("offline")
    rows = [
        [kind, environment, data, f"{held['behaviour'][f'{environment}/{data}']:g}", f"{steps:,}",
         f"{found['mean']:g}", returns, _goal(found)]
        for (kind, environment, data), found, steps, returns in _summaries(held, algorithm)
    ]  # fmt: skip
    head = ["algorithm", "environment", "data", "its mean return", "gradient steps", "mean return", "each seed", "goal"]
    about = "The mean return of 20 episodes after the last step. CQL and IQL are to exceed mediocre data and BC.\n"
    return _of_one_or_all(head, rows, algorithm, about)


def asked() -> str:
    """What Decision Transformers returned for targets below the highest recorded return, after the same training."""
    rows: dict[tuple[str, str, str], list[float]] = {}
    for name, cell in read("offline").get("cells", {}).items():
        _, environment, data, _ = name.split("/")
        for target, found in cell.get("asked", {}).items():
            rows.setdefault((environment, data, target), []).append(found)
    if not rows:
        return NOT_MEASURED
    lines = [
        [*row, f"{statistics.mean(found):.4g}", ", ".join(f"{x:g}" for x in found)]
        for row, found in sorted(rows.items(), key=lambda item: (*item[0][:2], -float(item[0][2])))
    ]
    return table(["environment", "data", "target", "mean return", "each seed"], lines)


def bandits() -> str:
    """The regret that bandits collect while they learn, beside LinUCB's bound."""
    held = read("bandits")
    rows = [
        [*name.split("/"), f"{found['mean']:.3g}", ", ".join(f"{x:.3g}" for x in found["regret"])]
        for name, found in held.items()
        if "/" in name
    ]
    if not rows:
        return NOT_MEASURED
    about = (
        f"\nRegret over {held['steps']:,} steps of `LinearBandit` with {held['size']} numbers in a context, "
        f"{held['actions']} actions and noise {held['noise']:g}; `squared` with `power=2`. With probability 0.9 LinUCB "
        f"collects at most {held['bound']:,} where rewards are linear.\n"
    )
    return table(["rewards", "algorithm", "mean regret", "each seed"], rows) + about


def _summaries(held: dict[str, Any], algorithm: str | None) -> Iterator[tuple]:
    """(names, summary, steps, the return of each seed) of one algorithm or of all."""
    for name, found in held.get("summary", {}).items():
        if algorithm in (None, name.split("/")[0]):
            cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
            returns = ", ".join(f"{cells[seed]['return']:g}" for seed in sorted(cells))
            yield name.split("/"), found, next(iter(cells.values()))["steps"], returns


def _goal(found: dict[str, Any]) -> str:
    if found.get("bar") is None:
        return ""
    missed = "**missed**, by less than a tenth" if found.get("within_a_tenth") else "**missed**"
    return f"{found['bar']:g} {'reached' if found['reached'] else missed}"


def _of_one_or_all(head: list[str], rows: list[list[str]], algorithm: str | None, about: str) -> str:
    """A table whose first column, the algorithm, is left out on the page of one."""
    if not rows:
        return NOT_MEASURED
    return (table(head, rows) if algorithm is None else table(head[1:], [row[1:] for row in rows])) + f"\n{about}"


def by_environment() -> str:
    """What each algorithm reached after how many steps and seconds, with JAX, where two of them learned the same."""
    held, found = read("learning"), {}
    for (kind, environment, engine), summary, steps, _ in _summaries(held, None):
        if engine == "jax":
            cells = [cell for key, cell in held["cells"].items() if key.startswith(f"{kind}/{environment}/jax/")]
            seconds = statistics.median(cell["seconds"] for cell in cells)
            link = f"[{title(kind)}](algorithms/{kind}.md)"
            row = [f"`{environment}`", link, f"{steps:,}", f"{seconds:,.0f}", f"{summary['mean']:g}"]
            found.setdefault(environment, []).append((steps, row))
    rows = [row for group in found.values() if len(group) > 1 for _, row in sorted(group)]
    return table(["environment", "algorithm", "steps", "seconds", "mean return"], rows) if rows else NOT_MEASURED


def curves(algorithm: str) -> dict[Path, list[Series]]:
    """The training of every seed, by the picture of an environment; of several engines, with JAX."""
    found: dict[Path, list[Series]] = {}
    for path in sorted((BENCHMARKS / "curves" / algorithm).glob("*.csv")):
        environment, _, kind = path.stem.rpartition("_")
        if kind in ("torch", "tensorflow"):
            continue
        recorded = "" if kind == "jax" else kind
        rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        seeds = {f"{seed:g}": rows[rows[:, 0] == seed].T[1:] for seed in np.unique(rows[:, 0])}
        title = environment + (f", {recorded} data" if recorded else "")
        name = "_".join(filter(None, (algorithm, environment, recorded)))
        make = _evaluated if recorded else _trained
        found[HERE / "curves" / f"{name}.png"] = [make(algorithm, title, seed, *of) for seed, of in seeds.items()]
    return found


def _trained(algorithm: str, title: str, seed: str, steps: Any, returns: Any, episodes: Any) -> Series:
    return Series(algorithm, title, seed, steps, returns, episodes, np.zeros(0), ())


def _evaluated(algorithm: str, title: str, seed: str, steps: Any, returns: Any, episodes: Any) -> Series:
    """Learning from recorded data collects no episodes: the curve is that of the evaluations."""
    none = np.zeros(0)
    return Series(algorithm, title, seed, none, none, none, steps, tuple(returns[:, None]), unit="gradient steps")


def pictures(algorithm: str, root: str = "../") -> str:
    """The curves of an algorithm, for a page from which `root` leads to the folder of pages."""
    found = curves(algorithm).items()
    shown = [f"![Returns on {runs[0].environment}]({root}curves/{path.name})\n" for path, runs in found]
    return "\n" + "\n".join(shown) if shown else ""


def learning_of_own_agents() -> str:
    """The table of the example agents, with the score of every seed."""
    held = read("solo_learning")
    rows = []
    for name, found in held.get("summary", {}).items():
        agent, variant, engine = name.split("/")
        cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
        scores = ", ".join(f"{cells[seed]['score']:g} ({cells[seed]['steps']:,})" for seed in sorted(cells))
        rows.append([agent, variant, engine, scores, f"{found['bar']:g}", f"{found['reached']} of {len(cells)}"])
    if not rows:
        return NOT_MEASURED
    return table(["agent", "variant", "engine", "score of each seed (environment steps)", "goal", "reached"], rows)


def at_random() -> str:
    """The returns of random actions on the task of MADDPG, and of AgileRL's MADDPG, where they were measured."""
    own = [cell["at_random"] for cell in read("solo_learning").get("cells", {}).values() if "at_random" in cell]
    peers = read("peers_maddpg").items()
    other = [cell["score"] for name, cell in peers if name.startswith("simple_speaker_listener")]
    text = f"; random actions: {min(own):g} to {max(own):g}" if own else ""
    return text + (
        f"; AgileRL's MADDPG after as many steps: {', '.join(f'{score:g}' for score in other)}" if other else ""
    )


def speed(name: str) -> str:
    """The figures of one file, whatever it holds: a row for each case, a column for each quantity, or the other way
    round where that makes a narrower table. Medians, with their range where there are at most six columns."""
    figures = _figures(results(name), (), None)
    found = {(path[0], ", ".join(path[1:]).replace("_", " ")): cells for path, *cells in figures}
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*found, strict=True)) if found else ([], [])
    if turned := len(columns) > len(rows):
        rows, columns = columns, rows
    lines = []
    for row in rows:
        cells = [found.get((column, row) if turned else (row, column), ("", "", "")) for column in columns]
        lines.append([row, *(_cell(*cell, ranges=len(columns) <= 6) for cell in cells)])
    return table(["case", *(column or "median" for column in columns)], lines) if lines else NOT_MEASURED


def _cell(median: str, spread: str, goal: str, ranges: bool) -> str:
    return median + (f" ({spread})" if spread and ranges else "") + (f"; goal {goal}" if goal else "")


def multi_agent() -> str:
    """The table of the multi-agent tasks, and the returns of another library on them."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for key, cell in read("multi_agent").get("cells", {}).items():
        algorithm, task, engine, steps, seed = key.split("/")
        found.setdefault((task, f"{algorithm} ({engine}, {int(steps):,} steps)"), {})[int(seed)] = cell["return"]
    for key, cell in results("peers_maddpg").items():
        task, episodes, seed = key.split(", ")
        row = (f"mpe2:{task}", f"AgileRL's maddpg ({episodes})")
        found.setdefault(row, {})[int(seed.removeprefix("seed "))] = cell["score"]
    rows = [
        [task, who, f"{statistics.mean(returns.values()):.4g}", ", ".join(f"{returns[i]:g}" for i in sorted(returns))]
        for (task, who), returns in sorted(found.items())
    ]
    about = "The mean return of episodes after the last step, 25 steps each, summed over the agents.\n"
    return table(["task", "algorithm", "mean return", "each seed"], rows) + "\n" + about if rows else NOT_MEASURED


def bsuite() -> str:
    """The tasks of bsuite: greedy episodes after training, and the whole training."""
    rows = []
    for task, found in results("bsuite_tasks").items():
        cells = [found[seed] for seed in sorted(found) if seed.isdigit()]
        returns = [", ".join(f"{cell[name]:g}" for cell in cells) for name in ("return", "while_training")]
        rows.append([task, found["algorithm"], f"{cells[0]['steps']:,}", *returns, f"{found['best']:g}"])
    head = ["task", "algorithm", "steps", "each seed: after training", "while training", "best"]
    return table(head, rows) if rows else NOT_MEASURED


def apex() -> str:
    """Seconds until the bar is reached, by Ape-X with two workers and by DQN."""
    rows = []
    for task, found in results("apex").items():
        for algorithm in ("dqn", "apex_dqn"):
            cells = [found[algorithm][seed] for seed in sorted(found[algorithm])]
            taken = [", ".join(str(cell[name]) for cell in cells) for name in ("seconds", "steps")]
            rows.append([task, algorithm, *taken, f"{found['bar']:g}"])
    head = ["environment", "algorithm", "seconds of each seed", "steps of each seed", "mean return reached"]
    return table(head, rows) if rows else NOT_MEASURED


def _figures(value: Any, path: tuple[str, ...], goal: Any) -> Iterator[tuple]:
    if isinstance(value, dict) and "median" in value:
        spread = f"{value['lowest']:g} to {value['highest']:g}"
        yield path, f"{value['median']:g}", spread, _number(value.get("wanted", goal))
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "wanted":
                yield from _figures(part, (*path, key), value.get("wanted") if key == "etude" else None)
    elif isinstance(value, list) and value and all(isinstance(part, int | float) for part in value):
        ordered = sorted(value)
        yield path, f"{ordered[len(ordered) // 2]:g}", f"{ordered[0]:g} to {ordered[-1]:g}", _number(goal)
    elif isinstance(value, int | float):
        yield path, f"{value:g}", "", _number(goal)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
