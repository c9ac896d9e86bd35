"""Tiny runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from run_worlds import Counted

from etude import Environment, Execution, Mlp, Policies, Run
from etude.algorithms import DQNConfig, PPOConfig
from etude.training.description import OF_ENVIRONMENT, forms_of_run

DQN_TINY = DQNConfig(
    network=Mlp((4,)), learning_rate=1e-3, learning_starts=16, train_every=8, gradient_steps=1, n_step=1, batch_size=8,
    buffer_size=500, target_update_every=5,
)  # fmt: skip
PPO_TINY = PPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=32, epochs=1)


def run_given(algorithm: Any, env: Any, **given: Any) -> Run:
    """A run of what is given by its names, each in the object that has it."""
    forms = forms_of_run(given)
    execution = {name: given.pop(name) for name in forms["execution=etude.Execution"]}
    if execution:
        given["execution"] = Execution(**execution)
    of_env = {own: given.pop(name) for name, own in OF_ENVIRONMENT.items() if name in given}
    if "train_only" in given:
        policies = Policies.given(given.get("policies"))
        given["policies"] = dataclasses.replace(policies, train_only=given.pop("train_only"))
    return Run(algorithm, Environment(env, **of_env) if of_env else env, **given)


def tiny(env: Any = Counted, algorithm: str = "dqn", **more: Any) -> Run:
    """A run of 4 environments that learns every 8 steps (DQN) or every 64 (PPO)."""
    config = {"dqn": DQN_TINY, "ppo": PPO_TINY}[algorithm]
    return run_given(algorithm, env, **{"config": config, "environments": 4, "engine": "torch", "seed": 1, **more})


def using(run: Run) -> Any:
    """The explorer of a run's rollout."""
    return run.collection._explorer


def pair(algorithm: Any, env: Any, **more: Any) -> Run:
    """A run of two environments of several agents."""
    return run_given(algorithm, env, **{"engine": "torch", "environments": 2, "seed": 1, **more})


def at_random(observation: Any, rng: np.random.Generator) -> int:
    """A rule: one of two actions."""
    return int(rng.integers(2))


def assert_same_weights(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def moved(run: Run, steps: int) -> set[str]:
    """The policies whose weights changed in so many steps."""
    before = run.engine.weights()
    run.train(steps)
    after = run.engine.weights()
    return {name.split(".")[0] for name in before if not np.array_equal(before[name], after[name])}
