"""Presets of A3C."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import Preset

A3C = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "entropy_coefficient": 0.01,
            "rollout_length": 20,
        },
        steps=200_000,
        environments=8,
        source="etude: found for CartPole-v1 on seeds from 101 up.",
    ),
}
