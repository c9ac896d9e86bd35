"""Presets of A2C."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

A2C = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(7e-4, 0.0),
            "gamma": 0.99,
            "gae_lambda": 1.0,
            "entropy_coefficient": 0.0,
            "rollout_length": 5,
        },
        steps=500_000,
        environments=8,
        source=ZOO.format("a2c", "CartPole-v1")
        + ". The learning rate falls to 0, and the optimizer is Adam (zoo: RMSProp).",
    ),
}
