"""Presets of DDPG."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import ON_POINT, POINT, POINT_SOURCE, ZOO, Preset

DDPG = {
    "Pendulum-v1": Preset(
        config={
            "network": Mlp((400, 300)),
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "batch_size": 256,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "random_steps": 10_000,
            "exploration_noise": 0.1,
        },
        steps=20_000,
        environments=1,
        source=ZOO.format("ddpg", "Pendulum-v1") + ".",
    ),
    POINT: Preset(
        config=ON_POINT | {"random_steps": 1_000, "exploration_noise": 0.2},
        steps=3_000,
        environments=1,
        source=POINT_SOURCE,
    ),
}
