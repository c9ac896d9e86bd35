"""What the pages tell of measurements: from benchmarks/*.json, where there are some, and benchmarks/curves/*/*.csv."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import NOTE, table

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
    head = ["", "environment", "engine", "steps", "mean return", "each seed", "goal"]
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
    head = ["", "environment", "steps", "etude", "Stable-Baselines3", "seeds", "better outside the intervals"]
    return table(head, rows) if rows else NOT_MEASURED


def offline(algorithm: str | None = None) -> str:
    """What was learned from recorded data, by one algorithm or by all, beside the returns in the data."""
    held = read("offline")
    rows = [
        [kind, environment, data, f"{held['behaviour'][f'{environment}/{data}']:g}", f"{steps:,}",
         f"{found['mean']:g}", returns, _goal(found)]
        for (kind, environment, data), found, steps, returns in _summaries(held, algorithm)
    ]  # fmt: skip
    head = ["", "environment", "data", "its mean return", "gradient steps", "mean return", "each seed", "goal"]
    about = (
        "The mean return of 20 episodes after the last step. With mediocre data, CQL and IQL are to beat it and BC.\n"
    )
    return _of_one_or_all(head, rows, algorithm, about)


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
    """From recorded data nothing is collected: evaluations are all that there is to see."""
    none = np.zeros(0)
    return Series(algorithm, title, seed, none, none, none, steps, tuple(returns[:, None]), unit="gradient steps")


def pictures(algorithm: str) -> str:
    """The curves of an algorithm, for its page."""
    found = curves(algorithm).items()
    shown = [f"![Returns on {runs[0].environment}](../curves/{path.name})\n" for path, runs in found]
    return "\n" + "\n".join(shown) if shown else ""


def learning_of_own_agents() -> str:
    """The table of the example agents, with the score of every seed."""
    held = read("solo_learning")
    rows = []
    for name, found in held.get("summary", {}).items():
        agent, variant, engine = name.split("/")
        cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
        told = [f"{cells[seed]['score']:g} ({cells[seed]['steps']:,})" for seed in sorted(cells)]
        rows.append(
            [agent, variant, engine, ", ".join(told), f"{found['bar']:g}", f"{found['reached']} of {len(cells)}"]
        )
    if not rows:
        return NOT_MEASURED
    return table(["", "", "engine", "score of each seed (after so many steps)", "goal", "reached"], rows)


def _at_random() -> str:
    """What actions at random earn where MADDPG was judged, and what AgileRL's MADDPG does, where that was measured."""
    own = [cell["at_random"] for cell in read("solo_learning").get("cells", {}).values() if "at_random" in cell]
    peers = read("peers_maddpg").items()
    other = [cell["score"] for name, cell in peers if name.startswith("simple_speaker_listener")]
    text = f"; actions at random earn {min(own):g} to {max(own):g}" if own else ""
    return text + (f", AgileRL's MADDPG {', '.join(f'{score:g}' for score in other)} on as many steps" if other else "")


def speed(name: str) -> str:
    """The figures of one file, whatever it holds: every value under the names that lead to it."""
    rows = [[" - ".join(path), *cells] for path, *cells in _figures(results(name), (), None)]
    return table(["", "median", "lowest to highest", "goal"], rows) if rows else NOT_MEASURED


def several() -> str:
    """The table of the tasks with several agents, and what another library reaches on them."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for key, cell in read("several").get("cells", {}).items():
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
    return table(["task", "", "mean return", "each seed"], rows) + "\n" + about if rows else NOT_MEASURED


def bsuite() -> str:
    """The tasks of bsuite: greedy episodes after training, and the whole training."""
    rows = []
    for task, found in results("bsuite_tasks").items():
        cells = [found[seed] for seed in sorted(found) if seed.isdigit()]
        told = [", ".join(f"{cell[name]:g}" for cell in cells) for name in ("return", "while_training")]
        rows.append([task, found["algorithm"], f"{cells[0]['steps']:,}", *told, f"{found['best']:g}"])
    head = ["task", "algorithm", "steps", "each seed: after training", "while training", "best"]
    return table(head, rows) if rows else NOT_MEASURED


def apex() -> str:
    """Seconds until the bar is reached, by Ape-X with two workers and by DQN."""
    rows = []
    for task, found in results("apex").items():
        for algorithm in ("dqn", "apex_dqn"):
            cells = [found[algorithm][seed] for seed in sorted(found[algorithm])]
            told = [", ".join(str(cell[name]) for cell in cells) for name in ("seconds", "steps")]
            rows.append([task, algorithm, *told, f"{found['bar']:g}"])
    head = ["environment", "", "seconds of each seed", "steps of each seed", "mean return reached"]
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


SPEED = {
    "start_up": "Starting (seconds)",
    "acting": "One observation to an action (microseconds)",
    "learn_step": "A gradient step (microseconds), against a bare loop in the same framework",
    "replay": "Replay: adding 8 rows, sampling 256, memory",
    "rollouts": "Collecting (steps a second), and the memory of workers",
    "whole_run": "Whole runs, compilation included (steps a second)",
    "simultaneous": "One, two and four runs at once on two cores: all together (steps a second), and each step's cost",
    "solo_speed": "Agents of one's own: collecting (steps a second), and collecting while learning (rounds a second)",
}


def about() -> str:
    """Where the figures were measured, one line for each machine and set of versions."""
    found = {}
    for name in ("learning", "defaults", "offline", "solo_learning", *SPEED):
        held = read(name).get("about", {})
        if held:
            libraries = ", ".join(f"{library} {number}" for library, number in held["versions"].items())
            peers = "".join(f", {library} {number}" for library, number in held.get("peers", {}).items())
            line = f"{held['machine']['processor']}, {held['machine']['cores']} cores, {held['machine']['system']}: "
            found.setdefault(f"{line}{libraries}" + (f"; peers: {peers[2:]}" if peers else ""), []).append(name)
    return "".join(f"- {', '.join(names)}: {line}.\n" for line, names in found.items()) or NOT_MEASURED


def benchmarks() -> str:
    """The page."""
    sections = "\n".join(f"## {title}\n\n{speed(name)}" for name, title in SPEED.items())
    return f"""# Benchmarks

{NOTE}
`python benchmarks/learning.py` and `solo_learning.py` measure learning (hours), `make bench` speed and memory,
`python -m benchmarks.simultaneous` several runs at once (an hour, on an otherwise idle machine); all write JSON into
`benchmarks/`, from which this page is made. The machines are noisy: what is compared was measured in turns, and a ratio
is the median of the ratios of each turn. A goal is a bound that the project set itself, at most or at least as the
quantity has it.

{about()}
## Learning

Preset hyperparameters, 20 episodes of evaluation after the last step. Every seed that was run is shown.

{learning()}
## Defaults beside those of Stable-Baselines3

`python benchmarks/defaults.py --peers PYTHON`: no preset on either side, as many environment steps, the mean return of
20 episodes from the same starts after the last step. In parentheses the 95% interval of the mean over seeds, by
resampling them. `python benchmarks/compare_ppo_update.py --peers PYTHON` compares single updates of PPO.

{defaults()}
## Learning from recorded data

{offline()}
## Several agents

{several()}
## bsuite

`benchmarks/bsuite_tasks.py` names the hyperparameters. `deep_sea` is explored by counts: a
bonus of 0.1 over the root of how often an observation was seen (Strehl & Littman 2008); `cartpole_swingup` by random
actions that last (`EpsilonZGreedy`).

{bsuite()}
## Ape-X against DQN

{apex()}
## Agents of one's own: learning

The example agents, `etude/examples`. CartPole-v1 is solved when training itself, exploration included, had a mean
return of 475 over ten rounds, each an episode of every environment; training stops there. ddpg_her: the share of 100
episodes that reach the goal. maddpg: the mean return of 100 episodes, summed over the agents{_at_random()}.

{learning_of_own_agents()}
{sections}"""
