"""Does SAC learn with state-dependent exploration (gSDE)? The preset of Pendulum-v1 with `gsde`, three seeds, for a
quarter of its steps.

`python benchmarks/gsde.py` writes gsde.json: the mean return of 20 episodes after the last step, for each seed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import measure

import etude
from etude import presets
from etude.checkpoint.config_json import to_json

ENVIRONMENT, EPISODES, STEPS = "Pendulum-v1", 20, 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    preset = presets.lookup("sac", ENVIRONMENT)
    config = etude.algorithms.SACConfig(**preset.config, gsde=True)
    results: dict = {"config": to_json(config), "steps": STEPS, "cells": {}}
    for seed in options.seeds:
        began = time.perf_counter()
        with etude.Run(
            "sac",
            ENVIRONMENT,
            config=config,
            environments=1,
            seed=seed,
            engine="jax",
            execution=etude.Execution(device="cpu"),
        ) as run:
            run.train(STEPS)
            seconds = time.perf_counter() - began
            found = measure.significant(run.evaluate(episodes=EPISODES).mean)
        results["cells"][str(seed)] = {"return": found, "seconds": round(seconds, 1)}
        results["mean"] = measure.significant(statistics.mean(cell["return"] for cell in results["cells"].values()))
        measure.write(__file__, results)
        print(f"seed {seed}: return {found:g}", flush=True)


if __name__ == "__main__":
    main()
