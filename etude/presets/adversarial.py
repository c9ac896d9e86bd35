"""Presets of GAIL and AIRL: PPO's, and what was tried for the discriminator. They are for as much data as the source
says; the environment's reward has no part in them."""

from __future__ import annotations

from typing import Any

from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.presets.preset import ZOO, Preset

_PPO: dict[str, Any] = {
    "network": Mlp((64, 64), "tanh", "orthogonal"),
    "learning_rate": Linear(1e-3, 0.0),
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "clip_range": Linear(0.2, 0.0),
    "rollout_length": 64,
    "minibatch_size": 256,
    "epochs": 20,
    "discriminator_every": 4,
}
_TRIED = " for PPO; {}tried on seeds 101 to 103 with 10 episodes of etude.examples.experts.balance"

GAIL = {
    "CartPole-v1": Preset(
        config=_PPO,
        steps=100_000,
        environments=8,
        source=ZOO.format("ppo", "CartPole-v1") + _TRIED.format(""),
    )
}
AIRL = {
    "CartPole-v1": Preset(
        config={
            **_PPO,
            "discriminator_learning_rate": Linear(3e-4, 0.0),
            "clip_range": 0.2,
            "entropy_coefficient": 0.01,
        },
        steps=100_000,
        environments=8,
        source=ZOO.format("ppo", "CartPole-v1") + _TRIED.format("clip and entropy stay as they are; "),
    )
}
