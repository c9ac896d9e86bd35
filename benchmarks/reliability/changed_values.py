"""Well-formed checkpoints with one changed value: each must be refused with CheckpointError, or be of a run that goes
on with finite numbers. `python -m benchmarks.reliability.changed_values [--files N] [--seed N] [--runs dqn ppo]` writes
changed_values.json."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import etude
from benchmarks.reliability.changes import change
from benchmarks.reliability.runs import RUNS
from etude import checkpoint
from etude.base.errors import CheckpointError

STEPS = 48  # of a run before it is saved, and of one that was changed and loads
DEADLINE = 60  # seconds for one file


def outcome(path: Path) -> tuple[str, str]:
    """(refused, goes on, or what is wrong; details)."""
    signal.alarm(DEADLINE)
    try:
        with etude.load(path) as run:
            run.train(STEPS)
            finite = all(np.isfinite(value).all() for value in run.engine.weights().values())
        return ("goes on", "") if finite else ("not finite", "")
    except CheckpointError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, "".join(traceback.format_exception(error)[-3:])
    finally:
        signal.alarm(0)


def measure(names: list[str], files: int, seed: int, show: bool) -> dict[str, Any]:
    """Counts of outcomes, and what was wrong."""
    rng, wrong = np.random.default_rng(seed), []
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path, states = Path(folder) / "run.etude", {}
        for name in names:
            with RUNS[name]() as run:
                run.train(STEPS)
                run.save(path)
            states[name] = checkpoint.read(path)
        for i in range(files):
            name = names[i % len(names)]
            changed, what = change(states[name], rng)
            checkpoint.write(path, changed)
            found, details = outcome(path)
            counts[name][found] += 1
            if found not in ("refused", "goes on"):
                wrong.append(f"{name}: {what}: {found}")
                print(wrong[-1], details, sep="\n", flush=True)
            elif show:
                print(f"{name}: {what}: {found} {details}", flush=True)
    total = sum(counts.values(), Counter())
    return {"files": files, "seed": seed, "outcomes": dict(total), "runs": counts, "wrong": wrong}


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {DEADLINE} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--show", action="store_true", help="print every change and what came of it")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    found = measure(given.runs, given.files, given.seed, given.show)
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    print(found["outcomes"])
