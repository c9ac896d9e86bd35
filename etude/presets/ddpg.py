"""Presets of DDPG."""

from __future__ import annotations

from etude.networks import Mlp
from etude.presets.preset import POINT, ZOO, Preset

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
        config={
            "network": Mlp((64, 64)),
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "batch_size": 256,
            "learning_starts": 1_000,
            "random_steps": 1_000,
            "exploration_noise": 0.2,
            "hindsight": "future",
            "hindsight_goals": 4,
        },
        steps=3_000,
        environments=1,
        source=f"Of etude's own, for {POINT}, tried on seed 101; relabelling as in Andrychowicz et al. 2017, "
        "arXiv:1707.01495, section 4.5.",
    ),
}
