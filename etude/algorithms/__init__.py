"""The algorithms by name, each in one file."""

from __future__ import annotations

import difflib
import re

from etude.agent import Agent
from etude.algorithms.a2c import A2C, A3C, A2CConfig, A3CConfig
from etude.algorithms.airl import AIRL, AIRLConfig
from etude.algorithms.appo import APPO, APPOConfig
from etude.algorithms.awac import AWAC, AWACConfig
from etude.algorithms.bandits import LinUCB, LinUCBConfig, NeuralTS, NeuralTSConfig
from etude.algorithms.bc import BC, BCConfig
from etude.algorithms.c51 import C51, C51Config, RainbowConfig
from etude.algorithms.cal_ql import CalQL, CalQLConfig
from etude.algorithms.categorical_sac import CategoricalSAC, CategoricalSACConfig
from etude.algorithms.cql import CQL, CQLConfig
from etude.algorithms.crossq import CrossQ, CrossQConfig
from etude.algorithms.ddpg import DDPG, ApexDDPGConfig, DDPGConfig
from etude.algorithms.decision_transformer import DecisionTransformer, DecisionTransformerConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.distributions import DistributionSpec, OwnDistribution
from etude.algorithms.dpo import DPO, DPOConfig
from etude.algorithms.dqn import DQN, ApexDQNConfig, DQNConfig
from etude.algorithms.dreamer_v3 import DreamerV3, DreamerV3Config
from etude.algorithms.edac import EDAC, EDACConfig
from etude.algorithms.es import ARS, ES, ARSConfig, ESConfig
from etude.algorithms.gail import GAIL, GAILConfig
from etude.algorithms.grpo import GRPO, GRPOConfig
from etude.algorithms.ilql import ILQL, ILQLConfig
from etude.algorithms.impala import IMPALA, IMPALAConfig
from etude.algorithms.iql import IQL, XQL, IQLConfig, XQLConfig
from etude.algorithms.maddpg import MADDPG, MADDPGConfig, MATD3Config
from etude.algorithms.mappo import MAPPO, MAPPOConfig
from etude.algorithms.marwil import MARWIL, MARWILConfig
from etude.algorithms.mpo import MPO, MPOConfig
from etude.algorithms.pets import PETS, PETSConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.pqn import PQN, PQNConfig
from etude.algorithms.qmix import QMIX, QMIXConfig, VDNConfig
from etude.algorithms.qr_dqn import QRDQN, QRDQNConfig
from etude.algorithms.r2d2 import R2D2, R2D2Config
from etude.algorithms.rebrac import ReBRAC, ReBRACConfig
from etude.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from etude.algorithms.reinforce import Reinforce, ReinforceConfig
from etude.algorithms.rlhf import RLHF, RewardModel, RewardModelConfig, RLHFConfig
from etude.algorithms.sac import SAC, SACConfig, SACNConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.algorithms.td3_bc import TD3BC, TD3BCConfig
from etude.algorithms.td_mpc2 import TDMPC2, TDMPC2Config
from etude.algorithms.tqc import TQC, TQCConfig
from etude.algorithms.trpo import TRPO, TRPOConfig
from etude.algorithms.v_mpo import VMPO, VMPOConfig
from etude.base.errors import ConfigError
from etude.config import (
    EpisodesConfig,
    GamesConfig,
    GradientsConfig,
    OfflineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    OnPolicySequenceConfig,
    PairsConfig,
    SequenceConfig,
    UnrollsConfig,
)
from etude.multi_agent.policies import MultiAgent

ALGORITHMS: dict[str, tuple[type[Agent], type]] = {
    "a2c": (A2C, A2CConfig),
    "a3c": (A3C, A3CConfig),
    "airl": (AIRL, AIRLConfig),
    "apex_ddpg": (DDPG, ApexDDPGConfig),
    "apex_dqn": (DQN, ApexDQNConfig),
    "appo": (APPO, APPOConfig),
    "ars": (ARS, ARSConfig),
    "awac": (AWAC, AWACConfig),
    "bc": (BC, BCConfig),
    "c51": (C51, C51Config),
    "cal_ql": (CalQL, CalQLConfig),
    "categorical_sac": (CategoricalSAC, CategoricalSACConfig),
    "cql": (CQL, CQLConfig),
    "crossq": (CrossQ, CrossQConfig),
    "ddpg": (DDPG, DDPGConfig),
    "decision_transformer": (DecisionTransformer, DecisionTransformerConfig),
    "discrete_sac": (DiscreteSAC, DiscreteSACConfig),
    "dpo": (DPO, DPOConfig),
    "dqn": (DQN, DQNConfig),
    "dreamer_v3": (DreamerV3, DreamerV3Config),
    "edac": (EDAC, EDACConfig),
    "es": (ES, ESConfig),
    "gail": (GAIL, GAILConfig),
    "grpo": (GRPO, GRPOConfig),
    "ilql": (ILQL, ILQLConfig),
    "impala": (IMPALA, IMPALAConfig),
    "iql": (IQL, IQLConfig),
    "lin_ucb": (LinUCB, LinUCBConfig),
    "maddpg": (MADDPG, MADDPGConfig),
    "mappo": (MAPPO, MAPPOConfig),
    "marwil": (MARWIL, MARWILConfig),
    "matd3": (MADDPG, MATD3Config),
    "mpo": (MPO, MPOConfig),
    "neural_ts": (NeuralTS, NeuralTSConfig),
    "pets": (PETS, PETSConfig),
    "ppo": (PPO, PPOConfig),
    "pqn": (PQN, PQNConfig),
    "qmix": (QMIX, QMIXConfig),
    "qr_dqn": (QRDQN, QRDQNConfig),
    "r2d2": (R2D2, R2D2Config),
    "rainbow": (C51, RainbowConfig),
    "rebrac": (ReBRAC, ReBRACConfig),
    "recurrent_ppo": (RecurrentPPO, RecurrentPPOConfig),
    "reinforce": (Reinforce, ReinforceConfig),
    "reward_model": (RewardModel, RewardModelConfig),
    "rlhf": (RLHF, RLHFConfig),
    "sac": (SAC, SACConfig),
    "sac_n": (SAC, SACNConfig),
    "td3": (TD3, TD3Config),
    "td3_bc": (TD3BC, TD3BCConfig),
    "td_mpc2": (TDMPC2, TDMPC2Config),
    "tqc": (TQC, TQCConfig),
    "trpo": (TRPO, TRPOConfig),
    "v_mpo": (VMPO, VMPOConfig),
    "vdn": (QMIX, VDNConfig),
    "xql": (XQL, XQLConfig),
}


OTHER_NAMES = {"ippo": "ppo", "pg": "reinforce"}  # that algorithms go by elsewhere


def named(name: str) -> str:
    """What an algorithm is called in `ALGORITHMS`: ppo where it is PPO elsewhere; other names as they are."""
    plain = re.sub(r"[-+ ]", "_", name.lower())
    plain = OTHER_NAMES.get(plain, plain)
    return plain if plain in ALGORITHMS else name


def find(name: str) -> tuple[type[Agent], type]:
    """The agent class and the config class of an algorithm; raises ConfigError with the names that there are."""
    if not isinstance(name, str):
        raise ConfigError(f"An algorithm is a name such as 'ppo', or an agent such as PPO(PPOConfig()); got {name!r}.")
    name = named(name)
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), ALGORITHMS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"There is no algorithm named {name!r}.{meant} There are {', '.join(sorted(ALGORITHMS))}.")
    return ALGORITHMS[name]


def for_several(agent: type[Agent]) -> bool:
    """Whether an algorithm is for several agents and no other."""
    return issubclass(agent, MultiAgent)


__all__ = [
    "A2C", "A2CConfig", "A3C", "A3CConfig", "AIRL", "AIRLConfig", "ALGORITHMS", "ApexDDPGConfig", "ApexDQNConfig",
    "APPO", "APPOConfig", "ARS", "ARSConfig", "AWAC", "AWACConfig", "BC", "BCConfig", "C51", "C51Config", "CalQL",
    "CalQLConfig", "CategoricalSAC", "CategoricalSACConfig", "CQL", "CQLConfig", "CrossQ", "CrossQConfig", "DDPG",
    "DDPGConfig", "DecisionTransformer", "DecisionTransformerConfig", "DiscreteSAC", "DiscreteSACConfig",
    "DistributionSpec", "DPO", "DPOConfig", "DQN", "DQNConfig", "DreamerV3", "DreamerV3Config", "EDAC", "EDACConfig",
    "EpisodesConfig", "ES", "ESConfig", "find", "for_several", "GAIL", "GAILConfig", "GamesConfig", "GradientsConfig",
    "GRPO", "GRPOConfig", "ILQL", "ILQLConfig", "IMPALA", "IMPALAConfig", "IQL", "IQLConfig", "LinUCB", "LinUCBConfig",
    "MADDPG", "MADDPGConfig", "MAPPO", "MAPPOConfig", "MARWIL", "MARWILConfig", "MATD3Config", "MPO", "MPOConfig",
    "named", "NeuralTS", "NeuralTSConfig", "OfflineConfig", "OffPolicyConfig", "OnPolicyConfig",
    "OnPolicySequenceConfig", "OTHER_NAMES", "OwnDistribution", "PairsConfig", "PPO", "PPOConfig", "PQN", "PQNConfig",
    "PETS", "PETSConfig",
    "QMIX", "QMIXConfig", "QRDQN", "QRDQNConfig", "R2D2", "R2D2Config", "RainbowConfig", "ReBRAC", "ReBRACConfig",
    "RecurrentPPO", "RecurrentPPOConfig", "Reinforce", "ReinforceConfig", "RewardModel", "RewardModelConfig", "RLHF",
    "RLHFConfig", "SAC", "SACConfig", "SACNConfig", "SequenceConfig", "TD3", "TD3BC", "TD3BCConfig", "TD3Config",
    "TDMPC2", "TDMPC2Config", "TQC", "TQCConfig", "TRPO", "TRPOConfig", "UnrollsConfig", "VDNConfig", "VMPO",
    "VMPOConfig", "XQL", "XQLConfig",
]  # fmt: skip
