"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.ddpg import DDPG, DDPGConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.maddpg import MADDPG, MADDPGConfig, MATD3Config
from etude.algorithms.mappo import MAPPO, MAPPOConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.assembly import Setup
from etude.config import OffPolicyConfig, OnPolicyConfig
from etude.networks import Conv, Mlp, lagged
from etude.optimizers import Adam
from etude.run import Run, load
from etude.schedules import Linear
from etude.several import Policies
from etude.solo.agent import RL, RL_pytorch

__version__ = "0.1.0"

__all__ = [
    "DDPG", "DQN", "MADDPG", "MAPPO", "PPO", "RL", "SAC", "TD3", "Adam", "Agent", "Conv", "DDPGConfig", "DQNConfig",
    "DiscreteSAC", "DiscreteSACConfig", "Linear", "Loss", "Losses", "MADDPGConfig", "MAPPOConfig", "MATD3Config", "Mlp",
    "OffPolicyConfig", "OnPolicyConfig", "PPOConfig", "Policies", "RL_pytorch", "Run", "SACConfig", "Setup",
    "TD3Config", "lagged", "load", "report",
]  # fmt: skip
