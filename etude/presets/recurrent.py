"""Presets of the algorithms whose networks have a memory, on the task of the examples that needs one."""

from __future__ import annotations

from etude.networks import Mlp, Recurrent
from etude.presets.preset import ZOO, Preset
from etude.schedules import Linear

WITHOUT_VELOCITIES = "etude.examples.cart_pole:WithoutVelocities"

RECURRENT_PPO = {
    WITHOUT_VELOCITIES: Preset(
        config={
            "network": Recurrent(Mlp(()), 64, "lstm", (64,)),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "lambda_": 0.8,
            "clip": Linear(0.2, 0.0),
            "rollout": 128,
            "sequence_length": 32,
            "minibatch": 256,
            "epochs": 20,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        steps=100_000,
        environments=8,
        source=ZOO.format("ppo_lstm", "CartPoleNoVel-v1")
        + f", for {WITHOUT_VELOCITIES}. Rollouts of 128 steps (zoo: 32), 64 units (zoo: 256), normalised observations "
        "and rewards; tried on seeds 101 to 105.",
    )
}
