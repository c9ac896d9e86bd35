"""Several runs at once on two cores: what one, two and four of them take together, of etude and of other libraries.

`python -m benchmarks.simultaneous --peers PATH_TO_PYTHON` adds to simultaneous.json, and draws simultaneous.svg; what
is there already is not measured again. To be run alone on the machine. Every run is a process of its own with the
threads that its library takes by default. All of them learn before the window opens, together, in which steps and the
processor time of each process are counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # as a module it is not there

import measure
from whole_run import TASKS, unlike_preset

from etude.report.pictures import COLOURS, finish, grid, legend, picture

ALGORITHMS = ("dqn", "ppo", "sac")
ENGINES = ("jax", "tensorflow", "torch")
PEERS = ("sb3", "sbx")
AT_ONCE = (1, 2, 4)
WARM = 3  # phases of learning before the window
TWO_AGAINST_ONE, FOUR_AGAINST_TWO, TIME_AGAINST_ONE = 1.8, 1.0, 1.2  # at least, at least, at most
WITHOUT_END = 1_000_000  # steps


def run(algorithm: str, engine: str, seconds: float, seed: int) -> dict:
    """One run of etude, in this process."""
    os.environ["KERAS_BACKEND"] = engine
    import etude
    from etude.base.events import Learned
    from etude.training.description import config_for

    env = TASKS[algorithm][0]
    config = dataclasses.replace(config_for(algorithm, env), **unlike_preset(algorithm))
    window, learned = measure.Window(seconds), 0
    with etude.Run(
        algorithm, env, config=config, seed=seed, engine=engine, execution=etude.Execution(device="cpu")
    ) as run:
        for event in run.steps(WITHOUT_END):
            learned += isinstance(event, Learned)
            if learned >= WARM and window.is_over(run.step):
                break
    return window.found()


def command(options: Any, name: str, algorithm: str, seed: int) -> list[str]:
    if name in PEERS:
        arguments = ["window", name, algorithm, str(options.seconds), str(seed)]
        return measure.script("peers.py", *arguments, python=options.peers)
    return measure.script("simultaneous.py", "--cell", f"{algorithm},{name},{options.seconds},{seed}")


def at_once(commands: list[list[str]], cores: int) -> list[dict]:
    """What these commands find in a window that opens for all of them together, on so many cores."""
    taken = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    variables = {name: value for name, value in os.environ.items() if name not in measure.LIMITS}
    variables["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with tempfile.TemporaryFile("w+") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True, "env": variables}
        started = [subprocess.Popen(["taskset", "--cpu-list", taken, *one], **pipes) for one in commands]
        try:
            for process in started:
                if not any(line.strip() == measure.READY for line in process.stdout):
                    errors.seek(0)
                    raise RuntimeError(f"{' '.join(process.args)} failed:\n{errors.read()[-3000:]}")
            for process in started:
                process.stdin.write("\n")
                process.stdin.flush()
            return [measure.last_line(process.communicate(timeout=600)[0]) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()


def summarised(cells: dict[str, dict], case: str, repeats: int) -> dict | None:
    """Figures of a case from its cells; None where some are missing."""
    found = {n: [cells.get(f"{case}, {n} at once, turn {i}") for i in range(repeats)] for n in AT_ONCE}
    if any(cell is None for turns in found.values() for cell in turns):
        return None
    speed = {n: [cell["steps_per_second"] for cell in turns] for n, turns in found.items()}
    cost = {n: [cell["seconds_per_step"] for cell in turns] for n, turns in found.items()}
    return {
        "steps_per_second": {str(n): measure.summary(values) for n, values in speed.items()},
        "processor_microseconds_per_step": {str(n): measure.summary([1e6 * s for s in cost[n]]) for n in AT_ONCE},
        "steps, two / one": {**measure.ratio(speed[2], speed[1]), "wanted": TWO_AGAINST_ONE},
        "steps, four / two": {**measure.ratio(speed[4], speed[2]), "wanted": FOUR_AGAINST_TWO},
        "processor time, two / one": {**measure.ratio(cost[2], cost[1]), "wanted": TIME_AGAINST_ONE},
        "processor time, four / one": {**measure.ratio(cost[4], cost[1]), "wanted": TIME_AGAINST_ONE},
    }


def draw(results: dict[str, dict]) -> None:
    """What all runs take together, against one alone: a panel for each algorithm."""
    with picture(Path(__file__).with_suffix(".svg"), *grid(len(ALGORITHMS))) as figure:
        panels = figure.subplots(*reversed(grid(len(ALGORITHMS))), sharey=True, squeeze=False).flat
        for panel, algorithm in itertools.zip_longest(panels, ALGORITHMS):
            if algorithm is None:
                panel.set_axis_off()
                continue
            for colour, name in zip(COLOURS, (*ENGINES, *PEERS), strict=False):
                if found := results.get(f"{algorithm}, {name}"):
                    speeds = [found["steps_per_second"][str(n)]["median"] for n in AT_ONCE]
                    style = "--" if name in PEERS else "-"
                    panel.plot(AT_ONCE, [s / speeds[0] for s in speeds], style, marker="o", color=colour, label=name)
            finish(panel, f"{algorithm}, {TASKS[algorithm][0]}", "runs at once", "steps/s of all", steps=False)
            panel.set(xticks=AT_ONCE, ylim=(0, None))
        legend(figure, "environment steps a second of all runs together; one alone = 1")


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.set_defaults(repeats=2)
    parser.add_argument("--algorithms", choices=ALGORITHMS, nargs="+", default=ALGORITHMS)
    parser.add_argument("--engines", choices=ENGINES, nargs="*", default=ENGINES)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long the window is open")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure again what is in the file")
    options = parser.parse_args()
    if options.cell:
        algorithm, engine, seconds, seed = options.cell.split(",")
        measure.answer(run(algorithm, engine, float(seconds), int(seed)))
        return
    names = [*options.engines, *(PEERS if options.peers else ())]
    wanted = [(turn, a, name, n) for turn in range(options.repeats) for a in options.algorithms for name in names
              for n in AT_ONCE]  # fmt: skip
    measured: set[str] = set()
    for turn, algorithm, name, n in wanted:
        cells = measure.read(__file__).get("cells", {})
        case = f"{algorithm}, {name}"
        cell = f"{case}, {n} at once, turn {turn}"
        if cell not in cells or (options.again and cell not in measured):
            found = at_once([command(options, name, algorithm, seed) for seed in range(1, n + 1)], options.cores)
            steps, speeds = sum(one["steps"] for one in found), [one["steps"] / one["seconds"] for one in found]
            cells[cell] = {
                "steps_per_second": measure.significant(sum(speeds)),
                "seconds_per_step": measure.significant(sum(one["processor_seconds"] for one in found) / steps),
            }
            measured.add(cell)
            print(f"{cell}: {cells[cell]}", flush=True)
            figures = summarised(cells, case, turn + 1)
            measure.write(__file__, {"cells": cells} | ({case: figures} if figures else {}), options.peers)
    draw(measure.read(__file__))


if __name__ == "__main__":
    main()
