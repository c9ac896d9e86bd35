"""Presets of ES."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import Preset

ES = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((32, 32), "tanh", "orthogonal"),
            "learning_rate": 0.02,
            "sigma": 0.1,
        },
        steps=300_000,
        environments=32,
        source="etude: found for CartPole-v1 on seeds from 101 up.",
    ),
}
