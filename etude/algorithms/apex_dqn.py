"""Ape-X DQN: DQN for many actors, with per-actor epsilons and initial priorities computed by the actors.

Horgan et al. 2018, Distributed prioritized experience replay, arXiv:1803.00933.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.algorithms.dqn import DQNConfig
from etude.base.schedules import Linear
from etude.networks import Mlp, Spec


@dataclass(frozen=True)
class ApexDQNConfig(DQNConfig):
    """Hyperparameters of Ape-X DQN, for many environments and workers."""

    epsilon: float | Linear = 0.4
    exploration_exponent: float = 7.0
    actor_priorities: bool = True
    priority_exponent: float = 0.6
    importance_exponent: float | Linear = 0.4
    n_step: int = 3
    train_every: int = 256  # environment steps between two learning phases; actors compute priorities once per phase
    gradient_steps: int = 64
    double: bool = True
    network: Spec = Mlp((64, 64), dueling=True)
