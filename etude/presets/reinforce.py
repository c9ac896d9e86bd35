"""Presets of REINFORCE."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import Preset

REINFORCE = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(5e-3, 0.0),
            "gamma": 0.99,
        },
        steps=200_000,
        environments=8,
        source="etude: found for CartPole-v1 on seeds from 101 up.",
    ),
}
