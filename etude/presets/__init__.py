"""Hyperparameters by algorithm and environment, as plain data with their sources."""

from __future__ import annotations

from etude.presets.a2c import A2C
from etude.presets.appo import APPO
from etude.presets.dqn import DQN
from etude.presets.es import ES
from etude.presets.impala import IMPALA
from etude.presets.ppo import PPO
from etude.presets.preset import Preset
from etude.presets.reinforce import REINFORCE
from etude.presets.sac import SAC

PRESETS: dict[str, dict[str, Preset]] = {
    "a2c": A2C,
    "appo": APPO,
    "dqn": DQN,
    "es": ES,
    "impala": IMPALA,
    "ppo": PPO,
    "reinforce": REINFORCE,
    "sac": SAC,
}


def lookup(algorithm: str, env_id: str) -> Preset | None:
    """The preset of an algorithm for a Gymnasium id, or None."""
    return PRESETS.get(algorithm, {}).get(env_id)


__all__ = ["PRESETS", "Preset", "lookup"]
