"""Presets of IMPALA."""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

IMPALA = {
    "CartPole-v1": Preset(
        config={
            "network": Mlp((64, 64), "tanh", "orthogonal"),
            "learning_rate": Linear(7e-4, 0.0),
            "gamma": 0.99,
            "trace_lambda": 1.0,
            "entropy_coefficient": 0.0,
            "rollout_length": 5,
        },
        steps=500_000,
        environments=8,
        source=ZOO.format("a2c", "CartPole-v1") + ", as of A2C here. Found to do on seeds from 101 up.",
    ),
}
