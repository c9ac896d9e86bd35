"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import report
from etude.agent import Agent, Loss, Losses
from etude.algorithms.a2c import A2C, A2CConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.algorithms.reinforce import Reinforce, ReinforceConfig
from etude.algorithms.sac import SAC, SACConfig
from etude.assembly import Setup
from etude.config import EpisodesConfig, OffPolicyConfig, OnPolicyConfig
from etude.networks import Conv, Mlp, lagged
from etude.optimizers import Adam
from etude.run import Run, load
from etude.schedules import Linear
from etude.solo.agent import RL, RL_pytorch

__version__ = "0.1.0"

__all__ = [
    "A2C", "A2CConfig", "DQN", "PPO", "RL", "SAC", "Adam", "Agent", "Conv", "DQNConfig", "EpisodesConfig", "Linear",
    "Loss", "Losses", "Mlp", "OffPolicyConfig", "OnPolicyConfig", "PPOConfig", "RL_pytorch", "Reinforce",
    "ReinforceConfig", "Run", "SACConfig", "Setup", "lagged", "load", "report",
]  # fmt: skip
