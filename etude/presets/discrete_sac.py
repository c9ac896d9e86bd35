"""Presets of SAC for choices."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import Preset

DISCRETE_SAC = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((128, 128)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "tau": 0.01,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 1_000,
            "train_every": 2,
            "gradient_steps": 1,
        },
        steps=50_000,
        environments=1,
        source="Of etude's own. Found for CartPole-v1 with other seeds than those of the results.",
    ),
}
