"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.apex_dqn import ApexDQNConfig
from etude.algorithms.c51 import C51, C51Config
from etude.algorithms.ddpg import DDPG, DDPGConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.qr_dqn import QRDQN, QRDQNConfig
from etude.algorithms.rainbow import RainbowConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.assembly import Setup
from etude.config import OffPolicyConfig, OnPolicyConfig
from etude.networks import Conv, Mlp, lagged
from etude.optimizers import Adam
from etude.run import Run, load
from etude.schedules import Linear
from etude.solo.agent import RL, RL_pytorch

__version__ = "0.1.0"

__all__ = [
    "C51", "DDPG", "DQN", "PPO", "QRDQN", "RL", "SAC", "TD3", "Adam", "Agent", "ApexDQNConfig", "C51Config", "Conv",
    "DDPGConfig", "DQNConfig", "DiscreteSAC", "DiscreteSACConfig", "Linear", "Loss", "Losses", "Mlp", "OffPolicyConfig",
    "OnPolicyConfig", "PPOConfig", "QRDQNConfig", "RL_pytorch", "RainbowConfig", "Run", "SACConfig", "Setup",
    "TD3Config", "lagged", "load", "report",
]  # fmt: skip
