"""Presets of SAC.

The zoo acts uniformly at random until `learning_starts`; etude samples its first, broad, policy.
"""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ON_POINT, POINT, POINT_SOURCE, ZOO, Preset

SAC = {
    "Pendulum-v1": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "tau": 0.005,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 100,
            "train_every": 1,
            "gradient_steps": 1,
        },
        steps=20_000,
        environments=1,
        source=ZOO.format("sac", "Pendulum-v1") + ".",
    ),
    "MountainCarContinuous-v0": Preset(
        config={
            "network": Mlp((64, 64)),
            "learning_rate": 3e-4,
            "gamma": 0.9999,
            "tau": 0.01,
            "temperature": 0.1,
            "learn_temperature": False,
            "batch_size": 512,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "train_every": 32,
            "gradient_steps": 32,
            "exploration_correlation": 0.95,
        },
        steps=50_000,
        environments=1,
        source=ZOO.format("sac", "MountainCarContinuous-v0") + ". Samples that are correlated in time, in the place of "
        "the zoo's noise that depends on the state (gSDE): independent ones never reach the flag.",
    ),
    "LunarLanderContinuous-v3": Preset(
        config={
            "network": Mlp((400, 300)),
            "learning_rate": Linear(7.3e-4, 0.0),
            "gamma": 0.99,
            "tau": 0.01,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 10_000,
            "train_every": 1,
            "gradient_steps": 1,
        },
        steps=500_000,
        environments=1,
        source=ZOO.format("sac", "LunarLanderContinuous-v3") + ".",
    ),
    "BipedalWalker-v3": Preset(
        config={
            "network": Mlp((400, 300)),
            "learning_rate": 7.3e-4,
            "gamma": 0.98,
            "tau": 0.02,
            "batch_size": 256,
            "buffer_size": 300_000,
            "learning_starts": 10_000,
            "train_every": 64,
            "gradient_steps": 64,
        },
        steps=500_000,
        environments=1,
        source=ZOO.format("sac", "BipedalWalker-v3") + ". Without gSDE; not run to its end yet.",
    ),
    "HalfCheetah-v5": Preset(
        config={
            "network": Mlp((256, 256)),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "tau": 0.005,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 5_000,
            "train_every": 1,
            "gradient_steps": 1,
        },
        steps=100_000,
        environments=1,
        source="Haarnoja et al. 2018, arXiv:1812.05905, table 1; a higher learning rate (paper: 0.0003).",
    ),
    POINT: Preset(config=ON_POINT, steps=5_000, environments=1, source=POINT_SOURCE),
}
