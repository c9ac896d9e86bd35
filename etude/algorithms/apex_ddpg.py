"""Ape-X DDPG: DDPG for many actors, with per-actor noise and initial priorities computed by the actors.

Horgan et al. 2018, Distributed prioritized experience replay, arXiv:1803.00933, section 4.2 and its appendix.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.algorithms.ddpg import DDPGConfig
from etude.base import checks
from etude.base.schedules import Linear


@dataclass(frozen=True)
class ApexDDPGConfig(DDPGConfig):
    """Hyperparameters of Ape-X DDPG, for many environments and workers."""

    exploration_noise: float | Linear = 0.4
    exploration_exponent: float = 7.0
    actor_priorities: bool = True
    priority_exponent: float = 0.6
    importance_exponent: float | Linear = 0.4
    n_step: int = 3
    learning_rate: float | Linear = 1e-4
    train_every: int = 256  # environment steps between two learning phases; actors compute priorities once per phase
    gradient_steps: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "exploration_noise")  # a power of more than 1 would grow along the environments
