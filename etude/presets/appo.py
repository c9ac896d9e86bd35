"""Presets of APPO."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import Preset

APPO = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "lambda_": 0.9,
            "clip": 0.2,
            "entropy": 0.0,
            "rollout": 32,
            "minibatch": 64,
            "epochs": 4,
            "target_every": 4,
        },
        steps=200_000,
        environments=8,
        source="etude: found for CartPole-v1 on seeds from 101 up.",
    ),
}
