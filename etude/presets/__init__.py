"""Hyperparameters by algorithm and environment, as plain data with their sources."""

from __future__ import annotations

from etude.presets.ddpg import DDPG
from etude.presets.discrete_sac import DISCRETE_SAC
from etude.presets.dqn import DQN
from etude.presets.offline import BC, CQL, IQL, MARWIL, TD3_BC
from etude.presets.ppo import PPO
from etude.presets.preset import Preset
from etude.presets.sac import SAC
from etude.presets.td3 import TD3

PRESETS: dict[str, dict[str, Preset]] = {
    "ddpg": DDPG,
    "discrete_sac": DISCRETE_SAC,
    "dqn": DQN,
    "ppo": PPO,
    "sac": SAC,
    "td3": TD3,
    "bc": BC,
    "cql": CQL,
    "iql": IQL,
    "marwil": MARWIL,
    "td3_bc": TD3_BC,
}


def lookup(algorithm: str, env_id: str) -> Preset | None:
    """The preset of an algorithm for a Gymnasium id, or None."""
    return PRESETS.get(algorithm, {}).get(env_id)


__all__ = ["PRESETS", "Preset", "lookup"]
