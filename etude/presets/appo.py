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
            "trace_lambda": 0.9,
            "clip_range": 0.2,
            "entropy_coefficient": 0.0,
            "rollout_length": 32,
            "minibatch_size": 64,
            "epochs": 4,
            "target_update_every": 4,
        },
        steps=200_000,
        environments=8,
        source="etude: found for CartPole-v1 on seeds from 101 up.",
    ),
}
