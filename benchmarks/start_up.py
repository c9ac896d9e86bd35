"""How long `import etude` takes, and how long until the first gradient step of DQN on CartPole-v1.

`python benchmarks/start_up.py` writes start_up.json. Every figure is of a process of its own, from its first line; the
interpreter's own start is measured apart.
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


def run(program: str):
    return measure.process([measure.sys.executable, "-c", program])


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--engines", nargs="+", default=["jax", "tensorflow", "torch"])
    options = parser.parse_args()
    rows = {name: measure.summary(seconds) for name, seconds in measured(options.repeats, options.engines).items()}
    measure.show("Starting", rows, "s")
    for name, most in WANTED.items():
        if name in rows:
            rows[name]["wanted"] = most
    measure.write(__file__, {"seconds": rows})


if __name__ == "__main__":
    main()
