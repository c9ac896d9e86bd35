"""Is this checkout slower than an earlier one? The measurements of `make bench`, without peers, of both in turns.

`python benchmarks/before_after.py EARLIER_CHECKOUT` writes before_after.json. Each checkout runs its own scripts with
one thread on one core, in the same environment; both put their own code first on the path. A ratio is the time that
this checkout takes over that of the earlier one: the median of the turns, and their range; of learning steps, each time
in proportion to the bare loop beside it. Rows that only one of the two has are left out. Of whole runs, the processor
seconds of the process count, imports and compilation included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure

HERE = Path(__file__).parent.parent
AT_MOST = 1.05
SCRIPTS = {  # options of each within a turn
    "start_up": "--repeats 1",
    "acting": "--repeats 3",
    "replay": "--repeats 3",
    "rollouts": "--repeats 1",
    "learn_step": "--repeats 11 --frameworks jax torch tensorflow --cases dqn ppo sac",
}
RUNS = {  # environment steps
    "dqn": 20_000,
    "ppo": 100_000,
    "a2c": 100_000,
    "qr_dqn": 20_000,
    "recurrent_ppo": 10_000,
    "sac": 3_000,
    "td3": 3_000,
    "ddpg": 3_000,
}
RATES = ("steps_per_second",)  # of which more is better
SKIPPED = ("about", "bare", "resident", "import numpy", "import gymnasium")
PROPORTION = "etude / bare"


def rows(name: str, tree: Path) -> dict[str, float]:
    """What a script of a checkout adds to its JSON file: the medians, by their path in it."""
    file = tree / "benchmarks" / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, str(file.with_suffix(".py")), "--threads", "one", *SCRIPTS[name].split()]
    done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} of {tree} failed:\n{done.stderr[-2000:]}", flush=True)
    found = dict(medians(json.loads(file.read_text()))) if file.exists() else {}
    if any(path.endswith(PROPORTION) for path in found):
        return {path: value for path, value in found.items() if path.endswith(PROPORTION)}
    return {path: value for path, value in found.items() if " / " not in path}


def medians(held: Any, path: str = "") -> Any:
    """(path, median) of all summaries in a JSON file."""
    if not isinstance(held, dict):
        return
    if isinstance(median := held.get("median"), int | float):
        yield path, float(median)
    for name, value in held.items():
        if name == PROPORTION or not any(word in name for word in SKIPPED):
            yield from medians(value, f"{path}/{name}".lstrip("/"))


def run_seconds(algorithm: str, engine: str, tree: Path) -> float:
    """Processor seconds of a process that trains and evaluates."""
    key, before = f"{algorithm},{engine},{RUNS[algorithm]},1", measure.processor_seconds()
    measure.process([sys.executable, str(tree / "benchmarks" / "whole_run.py"), "--cell", key], **environment(tree))
    return measure.processor_seconds() - before


def environment(tree: Path) -> dict[str, str]:
    """The variables of a process that imports this checkout, and keeps its bytecode, as an installed package does."""
    limits = dict.fromkeys(measure.LIMITS, "1")
    return {**os.environ, **limits, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}


def commit(tree: Path) -> str:
    """The commit of a checkout."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


def ratio(name: str, before: float, after: float) -> float:
    """Time of after over time of before."""
    return before / after if any(word in name for word in RATES) else after / before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout, whose JSON files are written anew")
    parser.add_argument("--after", type=Path, default=HERE, help="another one; this one by default")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scripts", nargs="*", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    parser.add_argument("--engines", nargs="+", default=["jax"], help="of whole runs")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    kept = measure.read(__file__).get("after / before", {})
    for turn in range(options.turns):
        for name in options.scripts:
            both = [rows(name, tree) for tree in (options.before, options.after)]
            for path in both[0].keys() & both[1].keys():
                found.setdefault(f"{name}: {path}", []).append(ratio(path, both[0][path], both[1][path]))
        for algorithm in options.runs:
            for engine in options.engines:
                before, after = (run_seconds(algorithm, engine, tree) for tree in (options.before, options.after))
                found.setdefault(f"whole run: {algorithm}, {engine}", []).append(after / before)
        summaries = {name: measure.summary(found[name]) for name in sorted(found)}
        told = {"before": commit(options.before), "after": commit(options.after), "at most": AT_MOST}
        measure.write(__file__, {**told, "after / before": dict(sorted({**kept, **summaries}.items()))})
        print(f"turn {turn + 1} of {options.turns}", flush=True)
    measure.show("after / before", summaries, "")


if __name__ == "__main__":
    main()
