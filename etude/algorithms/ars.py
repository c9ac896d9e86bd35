"""Augmented random search: evolution strategies of linear policies, along the best of few random directions.

Mania, Guy & Recht 2018, Simple random search provides a competitive approach to reinforcement learning,
arXiv:1803.07055, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.algorithms.es import ES, ESConfig
from etude.base import checks
from etude.base.optimizers import SGD, Optimizer
from etude.base.schedules import Linear
from etude.losses.policy import augmented_gradient
from etude.networks import Mlp, Spec


@dataclass(frozen=True)
class ARSConfig(ESConfig):
    """Hyperparameters of ARS: those of ES with other defaults, and the number of directions that count. Versions V2 and
    V2-t; with `normalize_observation` off V1 and V1-t."""

    network: Spec = Mlp(())  # policy network: a linear one
    learning_rate: float | Linear = 0.02
    optimizer: Optimizer = SGD()
    sigma: float = 0.05
    weight_decay: float = 0.0
    normalize_observation: bool = True
    top_directions: int | None = None  # directions in a step, those of the highest returns; None: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_directions is not None:
            checks.counts(self, "top_directions")


class ARS(ES):
    """A policy that moves along random directions by the differences of the returns of either way, in units of their
    standard deviation."""

    def ascent(self, returns: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return augmented_gradient(returns, noise, self.config.top_directions)
