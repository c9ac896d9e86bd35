"""Whole runs, compilation included: etude against Stable-Baselines3, its contrib and SBX with the settings of the zoo;
against CleanRL with those that its scripts can be given.

`python benchmarks/whole_run.py --peers PATH_TO_PYTHON --cleanrl CLONE_OF_CLEANRL` adds to whole_run.json. Every run is
a process of its own. What is timed goes from making the run to the end of training; imports are timed apart; the agents
are evaluated after (CleanRL's: see peers_cleanrl.py).
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import time

import measure

# An algorithm with the zoo's hyperparameters, or with those of CleanRL's script.
TASKS = {
    "dqn": ("CartPole-v1", 50_000),
    "qr_dqn": ("CartPole-v1", 50_000),
    "a2c": ("CartPole-v1", 100_000),
    "ppo": ("CartPole-v1", 100_000),
    "recurrent_ppo": ("CartPole-v1", 20_000),
    "ddpg": ("Pendulum-v1", 20_000),
    "td3": ("Pendulum-v1", 20_000),
    "sac": ("Pendulum-v1", 20_000),
    "tqc": ("Pendulum-v1", 20_000),
    "crossq": ("Pendulum-v1", 20_000),
    "trpo": ("CartPole-v1", 100_000),
    "ars": ("CartPole-v1", 200_000),
    "dqn as CleanRL": ("CartPole-v1", 50_000),
    "c51 as CleanRL": ("CartPole-v1", 50_000),
    "ppo as CleanRL": ("CartPole-v1", 100_000),
    "ddpg as CleanRL": ("Pendulum-v1", 20_000),
    "td3 as CleanRL": ("Pendulum-v1", 20_000),
    "sac as CleanRL": ("Pendulum-v1", 20_000),
}
AT_LEAST = {
    "dqn": {"sb3": 2.8, "sbx": 1.3},
    "qr_dqn": {"sb3_contrib": 1.0},
    "a2c": {"sb3": 1.0},
    "ppo": {"sb3": 4.0, "sbx": 2.5},
    "recurrent_ppo": {"sb3_contrib": 1.0},
    "ddpg": {"sb3": 1.0, "sbx": 1.0},
    "td3": {"sb3": 1.0, "sbx": 1.0},
    "sac": {"sb3": 1.5, "sbx": 1.0},
    "tqc": {"sbx": 1.0},
    "crossq": {"sbx": 1.0},
    "trpo": {"sb3_contrib": 1.0},
    "ars": {"sb3_contrib": 1.0},
    **{task: {"cleanrl": 1.0} for task in TASKS if task.endswith(" as CleanRL")},
}


def algorithm_of(task: str) -> str:
    return task.removesuffix(" as CleanRL")


def unlike_preset(task: str) -> dict:
    """Where the peers have other settings than etude's preset."""
    from etude import Linear, Mlp, Recurrent
    from etude.optimizers import Adam

    one_step = {"double": False, "n_step": 1}
    ppo = {"rollout_length": 32}
    values_as_cleanrl = {
        **one_step, "network": Mlp((120, 84)), "learning_rate": 2.5e-4, "batch_size": 128, "buffer_size": 10_000,
        "learning_starts": 10_000, "train_every": 10, "gradient_steps": 1, "target_update_every": 50,
        "epsilon": Linear(1.0, 0.05, 0.5), "max_gradient_norm": None,
    }  # fmt: skip
    settings = {
        "dqn": one_step,
        "qr_dqn": one_step,
        "ppo": ppo,
        "recurrent_ppo": {
            **ppo, "network": Recurrent(Mlp((), "tanh", "orthogonal"), 64, "lstm", (64,)), "minibatch_size": 256,
            "epochs": 20, "learning_rate": Linear(1e-3, 0.0), "clip_range": Linear(0.2, 0.0), "gamma": 0.98,
            "gae_lambda": 0.8,
        },
        "dqn as CleanRL": values_as_cleanrl,
        "c51 as CleanRL": {
            **values_as_cleanrl, "atoms": 101, "v_min": -100.0, "v_max": 100.0,
            "optimizer": Adam(epsilon=0.01 / 128),
        },
        "ppo as CleanRL": {**ppo, "clip_range": 0.2, "value_clip_range": 0.2},
        "ddpg as CleanRL": {"network": Mlp((256, 256))},
        "td3 as CleanRL": {"network": Mlp((256, 256))},
    }  # fmt: skip
    return settings.get(task, {})


def cell(task: str, engine: str, steps: int, seed: int) -> dict:
    """One run of etude, in this process."""
    began = time.perf_counter()
    framework = "torch" if engine == "torch" else "keras"
    os.environ["KERAS_BACKEND"] = engine
    importlib.import_module(framework)
    import etude
    from etude.training.description import config_for

    algorithm, env = algorithm_of(task), TASKS[task][0]
    config = dataclasses.replace(config_for(algorithm, env), **unlike_preset(task))
    imported = time.perf_counter()
    run = etude.Run(algorithm, env, config=config, seed=seed, engine=engine, execution=etude.Execution(device="cpu"))
    run.train(steps)
    trained = time.perf_counter()
    mean = run.evaluate(episodes=10).mean
    run.close()
    return {"seconds": trained - imported, "import_seconds": imported - began, "return": mean}


def main() -> None:
    algorithms = list(dict.fromkeys(map(algorithm_of, TASKS)))
    parser = measure.arguments(__doc__)
    parser.add_argument("--cleanrl", help="a clone of CleanRL, which --peers is to run; without it, it is left out")
    parser.add_argument("--algorithms", choices=algorithms, nargs="+", default=algorithms)
    parser.add_argument("--engines", nargs="+", default=["jax"])
    parser.add_argument("--steps", type=int, help="fewer environment steps than the whole run, to try things out")
    options = parser.parse_args()
    if options.cell:
        task, engine, steps, seed = options.cell.split(",")
        measure.answer(cell(task, engine, int(steps), int(seed)))
        return
    if options.cleanrl and not options.peers:
        parser.error("--cleanrl needs --peers, a Python to run its scripts with")
    tasks = [task for task in TASKS if algorithm_of(task) in options.algorithms]
    tasks = [task for task in tasks if options.cleanrl or "cleanrl" not in AT_LEAST[task]]
    if not tasks:
        parser.error(f"only CleanRL is compared with in {', '.join(options.algorithms)}: name a clone with --cleanrl")
    for threads in options.threads:
        for task in tasks:
            compare(options, threads, task)


def command(options, name: str, task: str, steps: int, seed: int) -> list[str]:
    """What runs a task with one library, or with one engine of etude's."""
    if name == "cleanrl":
        arguments = [options.cleanrl, algorithm_of(task), str(steps), str(seed)]
        return measure.script("peers_cleanrl.py", *arguments, python=options.peers)
    if name in AT_LEAST[task]:
        return measure.script("peers.py", "run", name, task, str(steps), str(seed), python=options.peers)
    return measure.script("whole_run.py", "--cell", f"{task},{name},{steps},{seed}")


def compare(options, threads: str, task: str) -> None:
    """All libraries in turns; prints, and adds to the JSON file."""
    env, steps = TASKS[task][0], options.steps or TASKS[task][1]
    libraries = AT_LEAST[task] if options.peers else {}
    found: dict[str, list[dict]] = {name: [] for name in [*options.engines, *libraries]}
    for seed in range(1, options.repeats + 1):
        for name, runs in found.items():
            runs.append(measure.process(command(options, name, task, steps, seed), threads))
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
                peer: {**measure.ratio(seconds[peer], seconds[engine]), "wanted": wanted}
                for peer, wanted in libraries.items()
            }
            for engine in options.engines
        },
    }
    title = f"{task}, {env}, {steps} steps, threads: {threads}"
    measure.show(title, result["steps_per_second"], "steps/s")
    for engine, peers in result["times_as_fast"].items():
        measure.show(f"  {engine} against", peers, "times as fast")
    if options.steps is None:
        measure.write(__file__, {f"{task}, threads: {threads}": result}, options.peers)


if __name__ == "__main__":
    main()
