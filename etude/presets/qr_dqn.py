"""Presets of QR-DQN. What holds for the presets of DQN against the zoo's holds for these."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

QR_DQN = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": Linear(2.3e-3, 0.0),
            "gamma": 0.99,
            "double": True,
            "n_step": 10,
            "target_update_every": 128,
            "epsilon": Linear(1.0, 0.04, 0.16),
            "quantiles": 10,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "train_every": 256,
            "gradient_steps": 128,
        },
        steps=50_000,
        environments=1,
        source=ZOO.format("qrdqn", "CartPole-v1") + ". A falling learning rate, a copy for each learning phase, double "
        "estimation over 10 steps, as in etude's preset of DQN.",
    ),
    "Acrobot-v1": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": Linear(6.3e-4, 0.0),
            "gamma": 0.99,
            "double": True,
            "n_step": 3,
            "quantiles": 25,
            "target_update_every": 250,
            "epsilon": Linear(1.0, 0.1, 0.12),
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "train_every": 4,
            "gradient_steps": 4,
        },
        steps=100_000,
        environments=1,
        source=ZOO.format("qrdqn", "Acrobot-v1") + ". gradient_steps -1 is 4 for 4 environment steps; a falling "
        "learning rate, double estimation over 3 steps.",
    ),
}
