"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.a2c import A2C, A2CConfig
from etude.algorithms.appo import APPO, APPOConfig
from etude.algorithms.ddpg import DDPG, DDPGConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.es import ES, ESConfig
from etude.algorithms.impala import IMPALA, IMPALAConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.r2d2 import R2D2, R2D2Config
from etude.algorithms.reinforce import Reinforce, ReinforceConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.assembly import Setup
from etude.config import EpisodesConfig, OffPolicyConfig, OnPolicyConfig, SequenceConfig, UnrollsConfig
from etude.networks import Conv, Mlp, Recurrent, lagged
from etude.optimizers import Adam
from etude.run import Run, load
from etude.schedules import Linear
from etude.solo.agent import RL, RL_pytorch

__version__ = "0.1.0"

__all__ = [
    "A2C", "APPO", "DDPG", "DQN", "ES", "IMPALA", "PPO", "R2D2", "RL", "SAC", "TD3", "A2CConfig", "APPOConfig",
    "Adam", "Agent", "Conv", "DDPGConfig", "DQNConfig", "DiscreteSAC", "DiscreteSACConfig", "ESConfig",
    "EpisodesConfig", "IMPALAConfig", "Linear", "Loss", "Losses", "Mlp", "OffPolicyConfig", "OnPolicyConfig",
    "PPOConfig", "R2D2Config", "RL_pytorch", "Recurrent", "Reinforce", "ReinforceConfig", "Run", "SACConfig",
    "SequenceConfig", "Setup", "TD3Config", "UnrollsConfig", "lagged", "load", "report",
]  # fmt: skip
