"""Presets of TD3."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import ON_POINT, POINT, POINT_SOURCE, ZOO, Preset

TD3 = {
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
        source=ZOO.format("td3", "Pendulum-v1") + ".",
    ),
    "HalfCheetah-v5": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "batch_size": 256,
            "learning_starts": 10_000,
            "random_steps": 10_000,
            "exploration_noise": 0.1,
        },
        steps=100_000,
        environments=1,
        source="Fujimoto et al. 2018, arXiv:1802.09477, table 3, with 256 x 256 units and batches of 256, as in the "
        "authors' later code (paper: 400 x 300, 100).",
    ),
    POINT: Preset(
        config=ON_POINT | {"random_steps": 1_000, "exploration_noise": 0.2},
        steps=3_000,
        environments=1,
        source=POINT_SOURCE,
    ),
}
