"""Presets of Rainbow: all six parts, with the figures of DQN for the rest."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

RAINBOW = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((128, 128), dueling=True, noisy=0.5),
            "learning_rate": Linear(2.3e-3, 0.0),
            "gamma": 0.99,
            "n_step": 10,
            "target_update_every": 128,
            "epsilon": 0.0,
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
        source=ZOO.format("dqn", "CartPole-v1") + ", as in etude's preset of DQN; the zoo has no Rainbow. Returns lie "
        "between 0 and 1 / (1 - gamma).",
    ),
    "LunarLander-v3": Preset(
        config={
            "network": Mlp((128, 128), dueling=True, noisy=0.1),
            "learning_rate": Linear(6.3e-4, 0.0),
            "gamma": 0.99,
            "n_step": 3,
            "target_update_every": 250,
            "epsilon": Linear(1.0, 0.1, 0.12),
            "v_min": -200.0,
            "v_max": 200.0,
            "batch_size": 64,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "train_every": 4,
            "gradient_steps": 4,
        },
        steps=100_000,
        environments=1,
        source=ZOO.format("dqn", "LunarLander-v3") + ", as in etude's preset of DQN, with smaller layers and batches; "
        "the zoo has no Rainbow. Epsilon as with DQN, and a fifth of the paper's noise.",
    ),
}
