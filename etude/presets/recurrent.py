"""Presets of the recurrent algorithms, on the task of the examples that needs one."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp, Recurrent
from etude.presets.preset import ZOO, Preset

WITHOUT_VELOCITIES = "etude.examples.cart_pole:WithoutVelocities"

RECURRENT_PPO = {
    WITHOUT_VELOCITIES: Preset(
        config={
            "network": Recurrent(Mlp(()), 64, "lstm", (64,)),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "clip_range": Linear(0.2, 0.0),
            "rollout_length": 128,
            "sequence_length": 32,
            "minibatch_size": 256,
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
R2D2 = {
    WITHOUT_VELOCITIES: Preset(
        config={
            "network": Recurrent(Mlp((64,)), 64, "gru", (64,)),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "n_step": 10,
            "epsilon": Linear(1.0, 0.02, 0.16),
            "batch_size": 64,
            "sequence_length": 20,
            "burn_in": 5,
            "train_every": 8,
            "target_update_every": 100,
            "priority_exponent": 0.0,
            "importance_exponent": 0.0,
            "normalize_observation": True,
        },
        steps=50_000,
        environments=8,
        source=f"Of etude's own, for {WITHOUT_VELOCITIES}: tried on seeds 101 to 103. With the paper's priorities some "
        "runs lose again what they had learned.",
    )
}
