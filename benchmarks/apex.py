"""How long until it is learned? Ape-X with two workers, which collect while the learner learns, against DQN.

`python benchmarks/apex.py --seeds 1 2 3` writes apex.json: the seconds of training, compilation included, until the
mean return of 20 episodes reaches the bar; evaluations, one after each fiftieth of DQN's preset, are not counted. Both
have their presets, and the same engine. To be run alone on the machine: three processes compute.
"""

from __future__ import annotations

import argparse
import statistics
import time

import measure

import etude
from etude import presets

BARS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
ALGORITHMS = {"dqn": {}, "apex_dqn": {"workers": 2, "overlap": True}}
EPISODES, LIMIT = 20, 3.0  # the most steps, in units of DQN's preset


def train(algorithm: str, environment: str, seed: int) -> dict:
    """One run, in this process: seconds and environment steps until the bar is reached, or None."""
    steps = presets.lookup("dqn", environment).steps
    seconds, found, best = 0.0, None, -float("inf")
    began = time.perf_counter()
    with etude.Run(algorithm, environment, seed=seed, engine="jax", device="cpu", **ALGORITHMS[algorithm]) as run:
        seconds += time.perf_counter() - began
        while run.step < LIMIT * steps:
            began = time.perf_counter()
            run.train(steps // 50)
            seconds += time.perf_counter() - began
            best = max(best, run.evaluate(episodes=EPISODES).mean)
            if best >= BARS[environment]:
                found = {"seconds": round(seconds, 2), "steps": run.step}
                break
    return found or {"seconds": None, "steps": None, "best": measure.significant(best)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--environments", nargs="+", choices=BARS, default=list(BARS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        algorithm, environment, seed = options.cell.split("/")
        measure.answer(train(algorithm, environment, int(seed)))
        return
    for environment in options.environments:
        held = measure.read(__file__).get(environment, {})
        cells = {algorithm: held.get(algorithm, {}) for algorithm in ALGORITHMS}
        for seed in options.seeds:
            for algorithm in ALGORITHMS:  # in turns, as the machine's speed changes
                key = f"{algorithm}/{environment}/{seed}"
                found = measure.process(measure.script("apex.py", "--cell", key))
                cells[algorithm][str(seed)] = found
                print(key, found, flush=True)
        measure.write(__file__, {environment: {**cells, "bar": BARS[environment], "summary": summary(cells)}})


def summary(cells: dict[str, dict]) -> dict:
    """How many times as fast Ape-X is; over the seeds on which both reach the bar."""
    both = [seed for seed in cells["dqn"] if all(found.get(seed, {}).get("seconds") for found in cells.values())]
    ratios = [cells["dqn"][seed]["seconds"] / cells["apex_dqn"][seed]["seconds"] for seed in both]
    return {
        "reached": {name: sum(cell["seconds"] is not None for cell in found.values()) for name, found in cells.items()},
        "times_as_fast": {
            "median": measure.significant(statistics.median(ratios)),
            "each": [round(x, 2) for x in ratios],
        }
        if ratios
        else None,
    }


if __name__ == "__main__":
    main()
