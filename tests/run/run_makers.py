"""Tiny runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from run_worlds import Counted

from etude import Mlp, Run
from etude.algorithms import DQNConfig, PPOConfig

DQN_TINY = DQNConfig(
    network=Mlp((4,)), learning_rate=1e-3, learning_starts=16, train_every=8, gradient_steps=1, n_step=1, batch_size=8,
    buffer_size=500, target_update_every=5,
)  # fmt: skip
PPO_TINY = PPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=32, epochs=1)


def tiny(env: Any = Counted, algorithm: str = "dqn", **more: Any) -> Run:
    """A run of 4 environments that learns every 8 steps (DQN) or every 64 (PPO)."""
    config = {"dqn": DQN_TINY, "ppo": PPO_TINY}[algorithm]
    return Run(algorithm, env, **{"config": config, "environments": 4, "engine": "torch", "seed": 1, **more})


def using(run: Run) -> Any:
    """The explorer of a run's rollout."""
    return run._lifecycle._explorer


def pair(algorithm: Any, env: Any, **more: Any) -> Run:
    """A run of two environments of several agents."""
    return Run(algorithm, env, **{"engine": "torch", "environments": 2, "seed": 1, **more})


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
