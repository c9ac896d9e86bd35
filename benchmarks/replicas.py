"""Strong scaling of data parallel training: environment steps and gradient steps per second of 1, 2 and 4 replicas.

`python benchmarks/replicas.py` writes replicas.json: for torch, processes that torchrun starts, and for JAX, devices of
one process. Efficiency is the speed divided by that of one replica and by their number, at the same batch. `load` is
the average load of the machine in the minute before: above 0, other processes took part of its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

WIDTHS = {"small": (64, 64), "large": (1024, 1024)}
WARM_UP = 4_096  # environment steps before the clock starts: compiling, and memory that is new


def run(engine: str, size: str, steps: int, path: str) -> None:
    """Train in this process, one of several, and write how fast it was."""
    import etude

    own = etude.Run(
        "ppo",
        "CartPole-v1",
        engine=engine,
        environments=8,
        network=etude.Mlp(WIDTHS[size]),
        rollout_length=256,
        minibatch_size=512,
        epochs=4,
        execution=etude.Execution(devices="all"),
    )
    own.train(WARM_UP)
    began, before = time.perf_counter(), own.learner.progress.gradient_steps
    own.train(steps)
    seconds = time.perf_counter() - began
    found = {"steps": steps / seconds, "gradient_steps": (own.learner.progress.gradient_steps - before) / seconds}
    if own.chief:
        Path(path).write_text(json.dumps(found))


def measured(engine: str, size: str, replicas: int, steps: int) -> dict[str, float]:
    """Steps a second with so many replicas."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        arguments = [__file__, "--cell", engine, size, str(steps), str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        start = [sys.executable]
        if engine == "torch" and replicas > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(replicas)]
        elif engine == "jax":
            environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={replicas}"
        subprocess.run([*start, *arguments], env=environment, check=True)
        return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--engines", nargs="+", default=["torch", "jax"])
    parser.add_argument("--sizes", nargs="+", default=list(WIDTHS))
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        engine, size, steps, path = given.cell
        run(engine, size, int(steps), path)
        return
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    for engine in given.engines:
        for size in given.sizes:
            alone = None
            for replicas in given.replicas:
                found = measured(engine, size, replicas, given.steps)
                alone = alone or found["steps"]
                found["efficiency"] = found["steps"] / alone / replicas * given.replicas[0]
                figures = {name: measure.significant(figure) for name, figure in found.items()}
                rows.append({"engine": engine, "network": size, "replicas": replicas, **figures})
                print(json.dumps(rows[-1]), flush=True)
    measure.write(__file__, {"load": load, "steps": given.steps, "rows": rows})


if __name__ == "__main__":
    main()
