"""Small runs of every kind of state that a checkpoint may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude import Mlp, Recurrent, Run
from etude.algorithms import (
    A3CConfig,
    BCConfig,
    DQNConfig,
    ESConfig,
    MADDPGConfig,
    PPOConfig,
    R2D2Config,
    RecurrentPPOConfig,
    SACConfig,
)

NETWORK = Mlp((4,))
DATA = Path(__file__).parents[1] / "data" / "CartPole-v1-mediocre.h5"
OFF_POLICY = {"network": NETWORK, "learning_starts": 16, "train_every": 8, "batch_size": 8, "buffer_size": 200}


def _run(algorithm: str, env: str, config: Any, environments: int | None = 2, **more: Any) -> Run:
    return Run(algorithm, env, config=config, environments=environments, engine="torch", seed=1, **more)


RUNS: dict[str, Callable[[], Run]] = {
    "dqn": lambda: _run("dqn", "CartPole-v1", DQNConfig(**OFF_POLICY, n_step=3, priority_exponent=0.6)),
    "sac": lambda: _run("sac", "Pendulum-v1", SACConfig(**OFF_POLICY)),
    "ppo": lambda: _run("ppo", "CartPole-v1", PPOConfig(
        network=NETWORK, rollout_length=16, minibatch_size=16, normalize_observation=True, normalize_reward=True
    )),
    "recurrent_ppo": lambda: _run("recurrent_ppo", "CartPole-v1", RecurrentPPOConfig(
        network=Recurrent(NETWORK, 3, "lstm", (4,)), rollout_length=16, sequence_length=8, minibatch_size=16
    )),
    "r2d2": lambda: _run("r2d2", "CartPole-v1", R2D2Config(
        **{**OFF_POLICY, "network": Recurrent(NETWORK, 3, "lstm", (4,))}, sequence_length=8, burn_in=2
    )),
    "maddpg": lambda: _run("maddpg", "mpe2.simple_spread_v3:parallel_env", MADDPGConfig(**OFF_POLICY)),
    "es": lambda: _run("es", "CartPole-v1", ESConfig(network=NETWORK), 4),
    "a3c": lambda: _run("a3c", "CartPole-v1", A3CConfig(network=NETWORK)),
    "bc": lambda: _run(
        "bc", "CartPole-v1", BCConfig(network=NETWORK, gradient_steps=4, batch_size=8), None, data=str(DATA)
    ),
}  # fmt: skip
