"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import offline, report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.a2c import A2C, A2CConfig
from etude.algorithms.a3c import A3C, A3CConfig
from etude.algorithms.airl import AIRL, AIRLConfig
from etude.algorithms.apex_ddpg import ApexDDPGConfig
from etude.algorithms.apex_dqn import ApexDQNConfig
from etude.algorithms.appo import APPO, APPOConfig
from etude.algorithms.bc import BC, BCConfig
from etude.algorithms.c51 import C51, C51Config
from etude.algorithms.cql import CQL, CQLConfig
from etude.algorithms.ddpg import DDPG, DDPGConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.es import ES, ESConfig
from etude.algorithms.gail import GAIL, GAILConfig
from etude.algorithms.impala import IMPALA, IMPALAConfig
from etude.algorithms.iql import IQL, IQLConfig
from etude.algorithms.maddpg import MADDPG, MADDPGConfig, MATD3Config
from etude.algorithms.mappo import MAPPO, MAPPOConfig
from etude.algorithms.marwil import MARWIL, MARWILConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.qr_dqn import QRDQN, QRDQNConfig
from etude.algorithms.r2d2 import R2D2, R2D2Config
from etude.algorithms.rainbow import RainbowConfig
from etude.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from etude.algorithms.reinforce import Reinforce, ReinforceConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.algorithms.td3_bc import TD3BC, TD3BCConfig
from etude.base.optimizers import Adam
from etude.base.schedules import Linear
from etude.config import (
    EpisodesConfig,
    GradientsConfig,
    OfflineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    OnPolicySequenceConfig,
    SequenceConfig,
    UnrollsConfig,
)
from etude.multi_agent.policies import Policies
from etude.networks import ActorCritic, Conv, Mlp, Recurrent, target
from etude.run import Run, load
from etude.solo.agent import RL, RL_pytorch
from etude.training.build import Setup
from etude.training.build import config_for as config
from etude.training.recording import record, replayed

__version__ = "0.1.0"

__all__ = [
    "A2C", "A3C", "AIRL", "APPO", "BC", "C51", "CQL", "DDPG", "DQN", "ES", "GAIL", "IMPALA", "IQL", "MADDPG", "MAPPO",
    "MARWIL", "PPO", "QRDQN", "R2D2", "RL", "SAC", "TD3", "TD3BC", "A2CConfig", "A3CConfig", "AIRLConfig",
    "APPOConfig", "ActorCritic", "Adam", "Agent", "ApexDDPGConfig", "ApexDQNConfig", "BCConfig", "C51Config",
    "CQLConfig", "Conv", "DDPGConfig", "DQNConfig", "DiscreteSAC", "DiscreteSACConfig", "ESConfig", "EpisodesConfig",
    "GAILConfig", "GradientsConfig", "IMPALAConfig", "IQLConfig", "Linear", "Loss", "Losses", "MADDPGConfig",
    "MAPPOConfig", "MARWILConfig", "MATD3Config", "Mlp", "OffPolicyConfig", "OfflineConfig", "OnPolicyConfig",
    "OnPolicySequenceConfig", "PPOConfig", "Policies", "QRDQNConfig", "R2D2Config", "RL_pytorch", "RainbowConfig",
    "Recurrent", "RecurrentPPO", "RecurrentPPOConfig", "Reinforce", "ReinforceConfig", "Run", "SACConfig",
    "SequenceConfig", "Setup", "TD3BCConfig", "TD3Config", "UnrollsConfig", "config", "target", "load", "offline",
    "record", "replayed", "report",
]  # fmt: skip
