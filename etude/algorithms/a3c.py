"""Asynchronous advantage actor-critic.

Mnih et al. 2016, Asynchronous methods for deep reinforcement learning, arXiv:1602.01783, Algorithm S3. Networks and
loss are those of `a2c`; gradients are computed by the actor-learners.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.algorithms.a2c import A2C, A2CConfig
from etude.config import GradientsConfig


@dataclass(frozen=True)
class A3CConfig(A2CConfig, GradientsConfig):
    """Hyperparameters of A3C: those of A2C, with a rollout of one environment for each gradient."""


class A3C(A2C):
    """A2C with asynchronous gradients: each environment's gradient is computed with weights that may be stale when
    it is applied."""

    learns_from = "gradients"
