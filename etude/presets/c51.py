"""Presets of C51: those of DQN, with distributions of returns."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

C51 = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": Linear(2.3e-3, 0.0),
            "gamma": 0.99,
            "double": True,
            "n_step": 10,
            "target_update_every": 128,
            "epsilon": Linear(1.0, 0.04, 0.16),
            "v_min": 0.0,
            "v_max": 100.0,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "train_every": 256,
            "gradient_steps": 128,
        },
        steps=50_000,
        environments=1,
        source=ZOO.format("dqn", "CartPole-v1") + ", as in etude's preset of DQN; the zoo has no C51. Returns lie "
        "between 0 and 1 / (1 - gamma).",
    ),
}
