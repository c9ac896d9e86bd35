"""Whole runs with the zoo's hyperparameters, compilation included: etude against Stable-Baselines3 and SBX.

`python benchmarks/whole_run.py --peers PATH_TO_PYTHON` writes whole_run.json. Every run is a process of its own.
What is timed goes from making the run to the end of training; imports are timed apart; the agents are evaluated after.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import time

import measure

TASKS = {"dqn": ("CartPole-v1", 50_000), "ppo": ("CartPole-v1", 100_000), "sac": ("Pendulum-v1", 20_000)}
# Where the zoo, which the peers follow, has other settings.
UNLIKE_PRESETS = {"dqn": {"double": False, "n_step": 1}, "ppo": {"rollout": 32}}
AT_LEAST = {"dqn": {"sb3": 2.8, "sbx": 1.3}, "ppo": {"sb3": 4.0, "sbx": 2.5}, "sac": {"sb3": 1.5, "sbx": 1.0}}


def cell(algorithm: str, engine: str, steps: int, seed: int) -> dict:
    """One run of etude, in this process."""
    began = time.perf_counter()
    framework = "torch" if engine == "torch" else "keras"
    os.environ["KERAS_BACKEND"] = engine
    importlib.import_module(framework)
    import etude
    from etude.assembly import config_for

    config = dataclasses.replace(config_for(algorithm, TASKS[algorithm][0]), **UNLIKE_PRESETS.get(algorithm, {}))
    imported = time.perf_counter()
    run = etude.Run(algorithm, TASKS[algorithm][0], config=config, seed=seed, engine=engine, device="cpu")
    run.train(steps)
    trained = time.perf_counter()
    mean = run.evaluate(episodes=10).mean
    run.close()
    return {"seconds": trained - imported, "import_seconds": imported - began, "return": mean}


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--algorithms", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--engines", nargs="+", default=["jax"])
    parser.add_argument("--steps", type=int, help="fewer environment steps than the whole run, to try things out")
    options = parser.parse_args()
    if options.cell:
        algorithm, engine, steps, seed = options.cell.split(",")
        measure.answer(cell(algorithm, engine, int(steps), int(seed)))
        return
    for threads in options.threads:
        for algorithm in options.algorithms:
            compare(options, threads, algorithm)


def compare(options, threads: str, algorithm: str) -> None:
    """All libraries in turns; prints, and adds to the JSON file."""
    env, steps = TASKS[algorithm][0], options.steps or TASKS[algorithm][1]
    libraries = ["sb3", "sbx"] if options.peers else []
    found: dict[str, list[dict]] = {name: [] for name in [*options.engines, *libraries]}
    for seed in range(1, options.repeats + 1):
        for name in found:
            if name in libraries:
                command = measure.script(
                    "peers.py", "run", name, algorithm, str(steps), str(seed), python=options.peers
                )
            else:
                command = measure.script("whole_run.py", "--cell", f"{algorithm},{name},{steps},{seed}")
            found[name].append(measure.process(command, threads))
    seconds = {name: [one["seconds"] for one in runs] for name, runs in found.items()}
    result = {
        "environment": env,
        "steps": steps,
        "steps_per_second": {name: measure.summary([steps / s for s in taken]) for name, taken in seconds.items()},
        "import_seconds": {
            name: measure.summary([one["import_seconds"] for one in runs]) for name, runs in found.items()
        },
        "return": {name: [measure.significant(one["return"]) for one in runs] for name, runs in found.items()},
        "times_as_fast": {
            engine: {
                peer: {**measure.ratio(seconds[peer], seconds[engine]), "wanted": AT_LEAST[algorithm][peer]}
                for peer in libraries
            }
            for engine in options.engines
        },
    }
    title = f"{algorithm} {env}, {steps} steps, threads: {threads}"
    measure.show(title, result["steps_per_second"], "steps/s")
    for engine, peers in result["times_as_fast"].items():
        measure.show(f"  {engine} against", peers, "times as fast")
    if options.steps is None:
        measure.write(__file__, {f"{algorithm}, threads: {threads}": result}, options.peers)


if __name__ == "__main__":
    main()
