"""Presets of A3C."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import Preset
from etude.schedules import Linear

A3C = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(7e-4, 0.0),
            "gamma": 0.99,
            "lambda_": 1.0,
            "entropy": 0.0,
            "rollout": 20,
        },
        steps=200_000,
        environments=8,
        source="etude: as of A2C here, but for longer rollouts, found for CartPole-v1 on seeds from 101 up",
    ),
}
