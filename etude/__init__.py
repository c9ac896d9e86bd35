"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import offline, report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.bc import BC, BCConfig
from etude.algorithms.cql import CQL, CQLConfig
from etude.algorithms.ddpg import DDPG, DDPGConfig
from etude.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.iql import IQL, IQLConfig
from etude.algorithms.maddpg import MADDPG, MADDPGConfig, MATD3Config
from etude.algorithms.mappo import MAPPO, MAPPOConfig
from etude.algorithms.marwil import MARWIL, MARWILConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.r2d2 import R2D2, R2D2Config
from etude.algorithms.sac import SAC, SACConfig
from etude.algorithms.td3 import TD3, TD3Config
from etude.algorithms.td3_bc import TD3BC, TD3BCConfig
from etude.assembly import Setup
from etude.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig, SequenceConfig
from etude.networks import Conv, Mlp, Recurrent, lagged
from etude.optimizers import Adam
from etude.recording import record, replayed
from etude.run import Run, load
from etude.schedules import Linear
from etude.several import Policies
from etude.solo.agent import RL, RL_pytorch

__version__ = "0.1.0"

__all__ = [
    "BC", "CQL", "DDPG", "DQN", "IQL", "MADDPG", "MAPPO", "MARWIL", "PPO", "R2D2", "RL", "SAC", "TD3", "TD3BC", "Adam",
    "Agent", "BCConfig", "CQLConfig", "Conv", "DDPGConfig", "DQNConfig", "DiscreteSAC", "DiscreteSACConfig",
    "IQLConfig", "Linear", "Loss", "Losses", "MADDPGConfig", "MAPPOConfig", "MARWILConfig", "MATD3Config", "Mlp",
    "OffPolicyConfig", "OfflineConfig", "OnPolicyConfig", "PPOConfig", "Policies", "R2D2Config", "RL_pytorch",
    "Recurrent", "Run", "SACConfig", "SequenceConfig", "Setup", "TD3BCConfig", "TD3Config", "lagged", "load",
    "offline", "record", "replayed", "report",
]  # fmt: skip
