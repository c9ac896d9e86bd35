"""A program: train agents of one's own with a strategy, as `test_solo_strategies.py` asks, and print what came of it.

Its arguments are the name of one of its functions, and JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def server(members: dict[str, list[str]], job: str) -> None:
    """A worker or a parameter server, until it is killed."""
    tf.distribute.Server(members, job_name=job, task_index=0, start=True).join()


def mirrored(kinds: list[str], replicas: list[int]) -> None:
    """What several agents learned without a strategy and with so many replicas, and what is said to what cannot be
    done."""
    devices = [tf.config.LogicalDeviceConfiguration()] * max(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    strategies = [tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)]) for count in replicas]
    found = {kind: [trained(kind, strategy) for strategy in (None, *strategies)] for kind in kinds}
    report({"learned": found, "refused": refusals(strategies[-1])})


def refusals(strategy: Any) -> dict[str, str | None]:
    inside, outside = made("DQN", strategy), made("DQN", None)
    with strategy.scope():
        adam = optimizers(inside)
    wrong = {
        "batch": lambda: inside.distributed_training(5, adam, strategy, 1),
        "agent": lambda: outside.distributed_training(adam, strategy, 1),
        "optimizer": lambda: inside.distributed_training(optimizers(inside), strategy, 1),
        "text": lambda: inside.distributed_training(adam, "mirrored", 1),
        "kind": lambda: inside.distributed_training(adam, tf.distribute.OneDeviceStrategy("/cpu:0"), 1),
        "none": lambda: inside.distributed_training(adam, None, 1),
        "twice": lambda: inside.distributed_training(adam, strategy, 1, strategy=strategy),
    }
    return {name: message_of(call) for name, call in wrong.items()}


def workers(path: str, other: bool = False, ends: str | None = None) -> None:
    """One of several workers, which TF_CONFIG describes. It trains, saves at `path`, and then trains on until it ends
    by "kill" or "interrupt"; other: with another seed than the chief."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id
    agent = made("PR", strategy)
    agent.path, agent.seed = path, int(other and rank)
    with strategy.scope():
        adam = optimizers(agent)
    found = {"message": message_of(lambda: agent.distributed_training(adam, strategy, num_episodes=6, p=0, **PLAIN))}
    found |= outcome(agent)
    if ends is not None:
        agent.path = None
        number = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}[ends]
        callbacks = [Ending(number)] if rank else []
        again = lambda: agent.distributed_training(None, strategy, num_episodes=5000, p=0, callbacks=callbacks, **PLAIN)  # noqa: E731
        found |= {"then": message_of(again), "episodes": agent.total_episode}
    report(found)


def scheduled(members: dict[str, list[str]], kills: int) -> None:
    """The coordinator of a worker and a parameter server. It kills the process `kills`, and trains again."""
    from etude.engines import strategies

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(members), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    found = {"learned": [trained("PR", None), trained("PR", strategy)]}
    strategies.PATIENCE = 2.0
    agent = made("DQN", strategy)
    with strategy.scope():
        adam = optimizers(agent)
    agent.distributed_training(adam, strategy, 3, p=0, **PLAIN)
    os.kill(kills, signal.SIGKILL)
    report({**found, "message": message_of(lambda: agent.distributed_training(None, strategy, 3, p=0, **PLAIN))})


class Ending:
    """Sends its process a signal at the end of its third episode."""

    def __init__(self, number: int):
        self._number = number

    def on_episode_end(self, episode: int, logs: Any = None) -> None:
        if episode == 2:
            os.kill(os.getpid(), self._number)


PLAIN = {"jit_compile": False}  # XLA would take most of the time


def made(kind: str, strategy: Any) -> Any:
    """An agent with its settings, within the strategy's scope where there is one."""
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
            agent.set(**discrete(PR=kind in ("PR", "Adjusted"), **same))
            if kind == "Adjusted":
                agent.adjust_func = lambda: adjust(agent, least=4 if strategy is None else 1)
    return agent


def adjust(agent: Any, least: int) -> None:
    """Moves the learning rate and beta1 by the noise of gradients, and the size of batches down to `least`."""
    moves = {"lr_params": {"rate": 0.5}, "beta1_params": {}}
    agent.adabatch(2, 1e-2, jit_compile=False, **moves)
    agent.adjust_batch_size(target_ess=1e6, batch_params={"min": least})


def optimizers(agent: Any) -> Any:
    """Adam with clipped gradients, one for each list in `param`."""
    import keras

    several = isinstance(list(agent.param)[0], list)
    made = [keras.optimizers.Adam(1e-2, global_clipnorm=0.5) for _ in (agent.param if several else [0])]
    return made if several else made[0]


def trained(kind: str, strategy: Any) -> dict[str, Any]:
    """What an agent learned in 20 gradient steps or a few more."""
    agent = made(kind, strategy)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        adam = optimizers(agent)
    if strategy is None:
        agent.train(None, adam, 6, p=0, **PLAIN)
    else:
        agent.distributed_training(adam, strategy, 6, p=0, **PLAIN)
    return outcome(agent)


def outcome(agent: Any) -> dict[str, Any]:
    """Parameters, the rows that are sampled next, and the number of gradient steps."""
    session = agent._session_state.session
    if session is None:
        return {}
    learner = session.learner
    vector = np.concatenate([np.ravel(x) for x in learner.engine.parameters().values()])
    rows = learner.buffer.sample(1, 16).index.ravel().tolist()
    found = {"parameters": vector.tolist(), "rows": rows, "gradient_steps": learner.progress.gradient_steps}
    rates = [setting.read() for setting in learner.engine.optimizer_settings("learning_rate")]
    return {**found, "rates": rates, "batch": learner.count_of("batch")}


def message_of(call: Any) -> str | None:
    """What a call raises, with the name of the class; None where it ends."""
    try:
        call()
    except (KeyboardInterrupt, Exception) as error:
        return f"{type(error).__name__}: {error}"
    return None


def report(found: Any) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
