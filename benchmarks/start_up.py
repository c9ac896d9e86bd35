"""How long `import etude` takes, how long until the first gradient step of DQN on CartPole-v1, and what two equal runs
in one process cost until then: the second calls what the first compiled.

`python benchmarks/start_up.py` writes start_up.json, `--again` the figures of equal runs alone; what is not measured
stays. Every figure is of a process of its own, from its first line; the interpreter's own start is measured apart.
"""

from __future__ import annotations

import measure

IMPORT = """
import time; began = time.perf_counter()
import {module}
print(time.perf_counter() - began)
"""
FIRST_STEP = """
import time; began = time.perf_counter()
import etude
from etude.base.events import Learned
with etude.Run("dqn", "CartPole-v1", engine="{engine}", device="cpu") as run:
    made = time.perf_counter()
    for event in run.steps(50_000):
        if isinstance(event, Learned):
            break
learned = time.perf_counter()
import json
print(json.dumps({{"made": made - began, "learned": learned - began}}))
"""
AGAIN = """
import json, time
import etude
from etude.base.events import Learned
def seconds():
    began = time.process_time()
    with etude.Run("dqn", "CartPole-v1", engine="{engine}", device="cpu") as run:
        for event in run.steps(50_000):
            if isinstance(event, Learned):
                break
    return time.process_time() - began
print(json.dumps({{"first": seconds(), "second": seconds()}}))
"""
WANTED = {"import etude": 0.4, "jax, first gradient step": 4.0}


def measured(repeats: int, engines: list[str]) -> dict[str, list[float]]:
    """Seconds, in turns, after one round that fills the caches of the disk."""
    modules = {"import numpy": "numpy", "import gymnasium": "gymnasium", "import etude": "etude"}
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        taken = {name: run(IMPORT.format(module=module)) for name, module in modules.items()}
        for engine in engines:
            answer = run(FIRST_STEP.format(engine=engine))
            taken[f"{engine}, run made"] = answer["made"]
            taken[f"{engine}, first gradient step"] = answer["learned"]
        if turn:
            for name, seconds in taken.items():
                found.setdefault(name, []).append(seconds)
    return found


def measured_again(repeats: int, engines: list[str]) -> dict[str, list[float]]:
    """Processor seconds until the first gradient step of two equal runs in one process; of the first with imports."""
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for engine in engines:
            for which, seconds in run(AGAIN.format(engine=engine)).items():
                found.setdefault(f"{engine}, {which} of two equal runs (processor)", []).append(seconds)
    return found


def run(program: str):
    return measure.process([measure.sys.executable, "-c", program])


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--engines", nargs="+", default=["jax", "tensorflow", "torch"])
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    found = {} if options.again else measured(options.repeats, options.engines)
    found |= measured_again(options.repeats, options.engines)
    rows = {name: measure.summary(seconds) for name, seconds in found.items()}
    measure.show("Starting", rows, "s")
    for name, most in WANTED.items():
        if name in rows:
            rows[name]["wanted"] = most
    measure.write(__file__, {"seconds": measure.read(__file__).get("seconds", {}) | rows})


if __name__ == "__main__":
    main()
