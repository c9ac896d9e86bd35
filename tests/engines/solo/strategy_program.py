"""A program: train agents of one's own with a strategy, as `test_solo_strategies.py` asks, and print what came of it.

Its arguments are the name of one of its functions, and JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def server(cluster: dict[str, list[str]], job: str) -> None:
    """A worker or a parameter server, until it is killed."""
    tf.distribute.Server(cluster, job_name=job, task_index=0, start=True).join()


def mirrored(replicas: list[int]) -> None:
    """Parameters and priorities of several agents after 20 gradient steps, without a strategy and with so many
    replicas."""
    devices = [tf.config.LogicalDeviceConfiguration()] * max(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    found = {}
    for kind in KINDS:
        found[kind] = [trained(kind, None)]
        for count in replicas:
            found[kind].append(trained(kind, tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)])))
    report(found)


def refused() -> None:
    """What is said to what cannot be done."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    inside, outside = made("DQN", strategy), made("DQN", None)
    with strategy.scope():
        adam = optimizers(inside)
    wrong = {
        "odd batch": lambda: inside.distributed_training(5, adam, strategy, 1),
        "agent outside": lambda: outside.distributed_training(adam, strategy, 1),
        "optimizer outside": lambda: inside.distributed_training(optimizers(inside), strategy, 1),
        "no strategy": lambda: inside.distributed_training(adam, "mirrored", 1),
        "another kind": lambda: inside.distributed_training(adam, tf.distribute.OneDeviceStrategy("/cpu:0"), 1),
        "missing": lambda: inside.distributed_training(adam, None, 1),
    }
    report({name: message_of(call) for name, call in wrong.items()})


def workers(
    path: str, episodes: int, restored: bool = False, dies_after: int | None = None, other: bool = False
) -> None:
    """One of several workers, which TF_CONFIG describes: trains, and saves at `path`."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id or 0
    agent = made("PR", strategy)
    agent.path = path
    if other and rank:
        agent.seed = 1
    callbacks = [Dying(dies_after)] if dies_after is not None and rank else []
    if restored:
        with strategy.scope():
            agent.restore(path)
    with strategy.scope():
        adam = optimizers(agent)

    def train() -> None:
        agent.distributed_training(adam, strategy, num_episodes=episodes, p=0, pool_network=False, callbacks=callbacks)

    message = message_of(train)
    report({"message": message, "episodes": agent.total_episode, "rewards": agent.reward_list, **outcome(agent)})


def scheduled(cluster: dict[str, list[str]], kills: dict[str, int] | None = None) -> None:
    """The coordinator of a worker and a parameter server, of which it may kill one before it trains again."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    found = {"PR": [trained("PR", None), trained("PR", strategy)]}
    if kills:
        from etude.engines import strategies

        strategies.PATIENCE = 2.0
        agent = made("DQN", strategy)
        with strategy.scope():
            adam = optimizers(agent)
        agent.distributed_training(adam, strategy, 3, p=0)
        os.kill(kills["pid"], signal.SIGKILL)
        found["message"] = message_of(lambda: agent.distributed_training(None, strategy, 3, p=0))
    report(found)


class Dying:
    """Kills its process at the end of an episode."""

    def __init__(self, episode: int):
        self._episode = episode

    def on_episode_end(self, episode: int, logs: Any = None) -> None:
        if episode == self._episode:
            os.kill(os.getpid(), signal.SIGKILL)


KINDS = ("DQN", "PR", "PPO", "DDPG", "Team")


def made(kind: str, strategy: Any) -> Any:
    """An agent with its settings, within the strategy's scope where there is one."""
    import contextlib

    from solo_agents import Reaching, agent_for, continuous, discrete, on_policy
    from solo_agents_worlds import Reach

    same = {"batch": 8, "num_updates": 6}
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        if kind == "DDPG":
            agent = agent_for("tensorflow", "DDPG", Reaching, env=Reach)
            agent.set(**continuous(HER=True, **same))
        elif kind == "PPO":
            agent = agent_for("tensorflow", "PPO")
            agent.set(**on_policy(batch=8))
        elif kind == "Team":
            agent = agent_for("tensorflow", "Team")
            agent.set(**discrete(MARL=True, update_batches=None, **same))
        else:
            agent = agent_for("tensorflow", "DQN")
            agent.set(**discrete(PR=kind == "PR", **same))
    return agent


def optimizers(agent: Any) -> Any:
    """Adam with clipped gradients, one for each list in `param`."""
    import keras

    several = isinstance(list(agent.param)[0], list)
    made = [keras.optimizers.Adam(1e-2, global_clipnorm=0.5) for _ in (agent.param if several else [0])]
    return made if several else made[0]


def trained(kind: str, strategy: Any) -> dict[str, Any]:
    """What an agent learned in 20 gradient steps or a few more."""
    import contextlib

    agent = made(kind, strategy)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        adam = optimizers(agent)
    if strategy is None:
        agent.train(None, adam, 6, p=0, jit_compile=False)
    else:
        agent.distributed_training(adam, strategy, 6, p=0, jit_compile=False)
    return outcome(agent)


def outcome(agent: Any) -> dict[str, Any]:
    """Parameters, priorities and the number of gradient steps."""
    session = agent._session_state.session
    if session is None:
        return {}
    learner = session.learner
    vector = np.concatenate([np.ravel(x) for x in learner.engine.parameters().values()])
    stored = learner.buffer.state()
    return {
        "parameters": vector.tolist(),
        "gradient_steps": learner.progress.gradient_steps,
        "priorities": np.ravel(stored["selector"]["priorities"]).tolist() if "priorities" in stored["selector"] else [],
    }


def message_of(call: Any) -> str | None:
    """What a call raises, with the name of the class; None where it ends."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def report(found: Any) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
