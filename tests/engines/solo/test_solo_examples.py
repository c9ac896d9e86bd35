"""The example agents train as their pages say; benchmarks/solo_learning.py shows how well all of them learn."""

import importlib
import os
import statistics

import numpy as np
import pytest
from solo_cases import agents_of

from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess, SoftmaxPolicy

VALUES = {"num_updates": 4, "update_batches": 2}
POLICY = {"num_updates": 4, "update_steps": 20, "PPO": True}
EXAMPLES = {
    "dqn": ("DQN", (4, 16, 2), 1, {"policy": EpsGreedyQPolicy, **VALUES}),
    "dqn_pr": ("DQN", (4, 16, 2), 1, {"policy": EpsGreedyQPolicy, **VALUES, "PR": True}),
    "ppo": ("PPO", (4, 16, 2, 0.2, 0.01), 2, {"policy": SoftmaxPolicy, **POLICY}),
    "ppo_pr": ("PPO", (4, 16, 2, 0.2, 0.01), 2, {"policy": SoftmaxPolicy, **POLICY, "PR": True}),
    "ddpg_her": (
        "DDPG",
        (16, 0.1, 0.98, 0.005),
        2,
        {"noise": GaussianWhiteNoiseProcess, "num_updates": 4, "HER": True},
    ),
    "maddpg": ("DDPG", (16, 0.01, 0.95, 0.01), 2, {"policy": SoftmaxPolicy, "num_updates": 4, "MARL": True}),
}


def example(module, engine_name, *, size=None, seed=1, rate=1e-3):
    """An example agent for an engine, and one Adam for each of its losses. Seeds what its networks start from."""
    name, arguments, losses, _ = EXAMPLES[module]
    os.environ["KERAS_BACKEND"] = engine_name
    library = importlib.import_module("torch" if engine_name == "torch" else "keras")
    agents_of(engine_name).seed(seed)
    package = importlib.import_module(f"etude.examples.{library.__name__}_agents.{module}")
    agent = getattr(package, name)(*(arguments if size is None else (arguments[0], size, *arguments[2:])))
    agent.seed = seed
    if engine_name != "torch":
        optimizers = [library.optimizers.Adam(rate) for _ in range(losses)]
    else:
        groups = agent.param if losses > 1 else [agent.param]
        optimizers = [library.optim.Adam(group, rate) for group in groups]
    return agent, optimizers if losses > 1 else optimizers[0]


def values_of(agent):
    groups = agent.param if isinstance(agent.param[0], list) else [agent.param]
    return [[_value(variable) for variable in group] for group in groups]


def _value(variable):
    return (variable.detach() if hasattr(variable, "detach") else variable).numpy().copy()


@pytest.mark.parametrize("module", EXAMPLES)
def test_every_example_plays_learns_and_moves_all_of_its_networks(module, engine_name):
    if module == "maddpg":
        pytest.importorskip("mpe2", reason="needs the extra multiagent")
    agent, optimizer = example(module, engine_name)
    settings = {**EXAMPLES[module][3]}
    role = "noise" if "noise" in settings else "policy"
    settings[role] = settings[role]()
    agent.set(pool_size=1_000, batch=8, **settings)
    before = values_of(agent)
    loss = agent.train(optimizer=optimizer, episodes=4, p=0)
    assert len(agent.reward_list) == 4
    assert np.isfinite(loss) and np.all(np.isfinite(agent.reward_list))
    for old, new in zip(before, values_of(agent), strict=True):
        assert any(not np.array_equal(a, b) for a, b in zip(old, new, strict=True))


def test_the_first_example_learns_to_balance_the_pole(engine_name):
    if engine_name != "torch":
        pytest.skip("torch only: what learns is the same page on every engine, and takes as long")
    agent, optimizer = example("dqn", engine_name, size=128)
    policy = EpsGreedyQPolicy(0.02)
    agent.set(policy=policy, batch=64, num_updates=200, update_batches=100, trial_count=10, criterion=195)
    agent.train(optimizer=optimizer, episodes=200, p=0)
    assert statistics.mean(agent.reward_list[-10:]) >= 195
