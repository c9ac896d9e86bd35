"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import algorithms, offline, report
from etude.agent import Agent, Loss, Losses
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
from etude.multi_agent.by_policy import Alternate, Frozen, League
from etude.multi_agent.policies import Policies
from etude.networks import ActorCritic, Conv, Mlp, Recurrent, target
from etude.run import Run, load
from etude.solo.agent import RL, RL_pytorch
from etude.training.build import assemble
from etude.training.build import config_for as config
from etude.training.recording import record, replayed
from etude.training.setup import Setup

__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "Adam",
    "Agent",
    "Alternate",
    "Conv",
    "EpisodesConfig",
    "Frozen",
    "GradientsConfig",
    "League",
    "Linear",
    "Loss",
    "Losses",
    "Mlp",
    "OffPolicyConfig",
    "OfflineConfig",
    "OnPolicyConfig",
    "OnPolicySequenceConfig",
    "Policies",
    "RL",
    "RL_pytorch",
    "Recurrent",
    "Run",
    "SequenceConfig",
    "Setup",
    "UnrollsConfig",
    "algorithms",
    "assemble",
    "config",
    "load",
    "offline",
    "record",
    "replayed",
    "report",
    "target",
]
