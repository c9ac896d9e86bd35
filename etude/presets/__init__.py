"""Hyperparameters by algorithm and environment, as plain data with their sources."""

from __future__ import annotations

from etude.presets.actor_critic import APEX_DDPG, DDPG, DISCRETE_SAC, RLPD, SAC, TD3
from etude.presets.multi_agent import MADDPG, MAPPO, MATD3
from etude.presets.offline import AWAC, BC, CAL_QL, CQL, EDAC, IQL, MARWIL, REBRAC, TD3_BC
from etude.presets.on_policy import A2C, A3C, AIRL, APPO, ES, GAIL, IMPALA, PPO, RECURRENT_PPO, REINFORCE
from etude.presets.preset import ATARI, ATARI_PREPROCESSING, Preprocessing, Preset
from etude.presets.value_based import APEX_DQN, C51, DQN, QR_DQN, R2D2, RAINBOW

PRESETS: dict[str, dict[str, Preset]] = {
    "a2c": A2C,
    "a3c": A3C,
    "airl": AIRL,
    "apex_ddpg": APEX_DDPG,
    "apex_dqn": APEX_DQN,
    "appo": APPO,
    "awac": AWAC,
    "bc": BC,
    "c51": C51,
    "cal_ql": CAL_QL,
    "cql": CQL,
    "ddpg": DDPG,
    "discrete_sac": DISCRETE_SAC,
    "dqn": DQN,
    "edac": EDAC,
    "es": ES,
    "gail": GAIL,
    "impala": IMPALA,
    "iql": IQL,
    "maddpg": MADDPG,
    "mappo": MAPPO,
    "marwil": MARWIL,
    "matd3": MATD3,
    "ppo": PPO,
    "qr_dqn": QR_DQN,
    "r2d2": R2D2,
    "rainbow": RAINBOW,
    "rebrac": REBRAC,
    "recurrent_ppo": RECURRENT_PPO,
    "reinforce": REINFORCE,
    "sac": SAC,
    "td3": TD3,
    "td3_bc": TD3_BC,
}


def lookup(algorithm: str, env_id: str) -> Preset | None:
    """The preset of an algorithm for an environment as runs name it, else the one for its family, or None."""
    tuned = PRESETS.get(algorithm, {})
    return tuned.get(env_id, tuned.get(ATARI) if _is_atari(env_id) else None)


def preprocessing(env_id: str) -> Preprocessing | None:
    """What an environment is wrapped in where its user says nothing else, or None."""
    return ATARI_PREPROCESSING if _is_atari(env_id) else None


def _is_atari(env_id: str) -> bool:
    return env_id.removeprefix("ale_py:").startswith(ATARI.removesuffix("*"))


def none_for(algorithm: str, env_id: str) -> str | None:
    """A note that an algorithm has no preset for an environment, with those that it has; None where it has one."""
    tuned = PRESETS.get(algorithm, {})
    if lookup(algorithm, env_id) is not None:
        return None
    elsewhere = f" It has presets for {', '.join(tuned)}." if tuned else ""
    return f"{algorithm} has no preset for {env_id}; the default hyperparameters are used.{elsewhere}"


__all__ = ["PRESETS", "RLPD", "Preprocessing", "Preset", "lookup", "none_for", "preprocessing"]
