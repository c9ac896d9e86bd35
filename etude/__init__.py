"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from etude import algorithms, offline, report, tuning
from etude.agent import Agent, Loss, Losses
from etude.algorithms.auxiliary import Auxiliary
from etude.algorithms.variants import variant
from etude.base import optimizers
from etude.base.schedules import Linear
from etude.config import (
    EpisodesConfig,
    OfflineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
)
from etude.estimation import estimate
from etude.multi_agent.by_policy import Alternate, Frozen, League
from etude.multi_agent.policies import Policies
from etude.networks import ActorCritic, ByEmbedding, Conv, Mlp, Recurrent, target
from etude.run import Run, load
from etude.solo.agent import RL, RL_pytorch
from etude.training.build import assemble
from etude.training.build import config_for as config
from etude.training.callbacks import Callback
from etude.training.recording import record, replayed
from etude.training.setup import Setup
from etude.tuning.evolution import Mutations, Tournament, evolve
from etude.tuning.study import Study

__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "Agent",
    "ByEmbedding",
    "Callback",
    "Auxiliary",
    "Alternate",
    "Conv",
    "EpisodesConfig",
    "Frozen",
    "League",
    "Linear",
    "Loss",
    "Losses",
    "Mlp",
    "Mutations",
    "OffPolicyConfig",
    "OfflineConfig",
    "OnPolicyConfig",
    "Policies",
    "RL",
    "RL_pytorch",
    "Recurrent",
    "Run",
    "Setup",
    "Study",
    "Tournament",
    "algorithms",
    "assemble",
    "config",
    "estimate",
    "evolve",
    "load",
    "offline",
    "optimizers",
    "record",
    "replayed",
    "report",
    "target",
    "tuning",
    "variant",
]
