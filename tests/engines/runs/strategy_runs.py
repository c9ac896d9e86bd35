"""A program: train runs with a strategy, as `test_strategies_of_runs.py` asks, and print what came of it.

Its arguments are the name of one of its functions, and JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import etude  # noqa: E402

SMALL = etude.Mlp((8,))
OFF_POLICY = {"network": SMALL, "learning_starts": 16, "train_every": 4, "batch_size": 8, "buffer_size": 200}
RUNS: dict[str, tuple[str, dict[str, Any], int]] = {  # environment, hyperparameters, steps
    "dqn": ("CartPole-v1", {**OFF_POLICY, "prioritised": True}, 120),
    "td3": ("Pendulum-v1", OFF_POLICY, 120),
    "sac": ("Pendulum-v1", OFF_POLICY, 120),
    "ppo": ("CartPole-v1", {"network": SMALL, "rollout_length": 16, "minibatch_size": 16, "epochs": 6}, 128),
    "recurrent_ppo": ("CartPole-v1", {"rollout_length": 16, "minibatch_size": 32, "epochs": 3}, 128),
}


def mirrored(algorithms: list[str], replicas: list[int]) -> None:
    """What runs learned without a strategy and with so many replicas, and what is said to what cannot be done."""
    devices = [tf.config.LogicalDeviceConfiguration()] * max(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    strategies = [tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)]) for count in replicas]
    found = {name: [learned(name, strategy=strategy) for strategy in (None, *strategies)] for name in algorithms}
    last = strategies[-1]
    wrong: dict[str, dict[str, Any]] = {
        "batch": {"batch_size": 9, "strategy": last},
        "engine": {"engine": "jax", "strategy": last},
        "both": {"devices": 2, "strategy": last},
        "text": {"strategy": "mirrored"},
    }
    refused = {
        name: message_of(lambda given=given: etude.Run("dqn", "CartPole-v1", **given)) for name, given in wrong.items()
    }
    report({"learned": found, "refused": refused})


def workers(path: str, more: int) -> None:
    """One of several workers, which TF_CONFIG describes: trains, saves, and goes on for `more` steps."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = learned("dqn", strategy=strategy, run_dir=path, environments=2)
    run = etude.load(path, strategy=strategy)
    with run:
        run.train(more)
        report({**found, "chief": run.chief, "step": run.step, "then": vector_of(run)})


def learned(name: str, **given: Any) -> dict[str, Any]:
    environment, hyperparameters, steps = RUNS[name]
    with etude.Run(name, environment, engine="tensorflow", **hyperparameters, **given) as run:
        finished = run.train(steps)
        return {"weights": vector_of(run), "gradient_steps": finished.totals["gradient_steps"]}


def vector_of(run: Any) -> list[float]:
    return np.concatenate([np.ravel(x) for x in run.engine.weights().values()]).tolist()


def message_of(call: Any) -> str | None:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def report(found: Any) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
