"""A program: train runs with a strategy, as `test_strategies_of_runs.py` asks, and print what came of it.

Its arguments are the name of one of its functions, and JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import etude  # noqa: E402

SMALL = etude.Mlp((8,))
MORE = 64  # steps of every run that is loaded, or trained on
OFF_POLICY = {"environments": 2, "network": SMALL, "learning_starts": 16, "train_every": 4, "gradient_steps": 1}
OFF_POLICY |= {"batch_size": 8, "buffer_size": 200}
# Constants where presets end at 0: nothing would be learned, or where ratios are clipped would be a matter of rounding.
ON_POLICY = {"rollout_length": 16, "learning_rate": 1e-3, "clip_range": 0.2, "environments": 4}
RUNS: dict[str, tuple[str, dict[str, Any], int]] = {  # environment, hyperparameters, steps
    "dqn": ("CartPole-v1", {**OFF_POLICY, "priority_exponent": 0.6}, 120),
    "td3": ("Pendulum-v1", OFF_POLICY, 120),
    "sac": ("Pendulum-v1", OFF_POLICY, 120),
    "ppo": ("CartPole-v1", {**ON_POLICY, "network": SMALL, "minibatch_size": 16, "epochs": 3}, 128),
    "recurrent_ppo": ("CartPole-v1", {**ON_POLICY, "sequence_length": 8, "minibatch_size": 32, "epochs": 5}, 128),
}


def mirrored(algorithms: list[str], replicas: list[int]) -> None:
    """What runs learned without a strategy and with so many replicas, and what is said to what cannot be done."""
    devices = [tf.config.LogicalDeviceConfiguration()] * max(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    strategies = [tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)]) for count in replicas]
    found = {name: [learned(name, strategy=strategy) for strategy in (None, *strategies)] for name in algorithms}
    report({"learned": found, "refused": refusals(strategies[-1])})


def refusals(strategy: Any) -> dict[str, str | None]:
    wrong: dict[str, dict[str, Any]] = {
        "batch": {"batch_size": 9, "strategy": strategy},
        "engine": {"engine": "jax", "strategy": strategy},
        "compiled": {"compiled": True, "strategy": strategy},
        "both": {"devices": 2, "strategy": strategy},
        "text": {"strategy": "mirrored"},
        "kind": {"strategy": tf.distribute.OneDeviceStrategy("/cpu:0")},
    }
    found = {name: message_of(lambda own=own: etude.Run("dqn", "CartPole-v1", **own)) for name, own in wrong.items()}
    return found | {
        "a3c": message_of(lambda: etude.Run("a3c", "CartPole-v1", execution=etude.Execution(strategy=strategy)))
    }


def scheduled(members: dict[str, list[str]]) -> None:
    """What is said to a ParameterServerStrategy, by its coordinator."""
    spec = tf.train.ClusterSpec(members)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    report(message_of(lambda: etude.Run("dqn", "CartPole-v1", execution=etude.Execution(strategy=strategy))))


def server(members: dict[str, list[str]], job: str) -> None:
    """A worker or a parameter server, until it is killed."""
    tf.distribute.Server(members, job_name=job, task_index=0, start=True).join()


def workers(path: str) -> None:
    """One of several workers, which TF_CONFIG describes: trains, saves, and goes on."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = learned("dqn", strategy=strategy, run_dir=path)
    with etude.load(path, strategy=strategy) as run:
        run.train(MORE)
        report({**found, "chief": run.chief, "step": run.step, "then": vector_of(run)})


def learned(name: str, **given: Any) -> dict[str, Any]:
    """The weights before, after, and (without a directory) MORE steps later; and how many rows of a batch each replica
    differentiates the losses of."""
    environment, hyperparameters, steps = RUNS[name]
    with etude.Run(name, environment, engine="tensorflow", **hyperparameters, **given) as run:
        before, rows = vector_of(run), set()
        loss: Callable[..., Any] = type(run.agent).loss

        def counted(agent: Any, batch: Any, noise: Any) -> Any:
            replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            rows.add((int(replica), batch.weight.shape[0]))
            return loss(agent, batch, noise)

        with mock.patch.object(type(run.agent), "loss", counted):
            finished = run.train(steps)
        found = {"before": before, "weights": vector_of(run), "rows": sorted(rows)}
        if run.directory is None:
            run.train(MORE)
            found["then"] = vector_of(run)
        return {**found, "gradient_steps": finished.totals["gradient_steps"]}


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
