"""Asynchronous advantage actor-critic.

Mnih et al. 2016, Asynchronous methods for deep reinforcement learning, arXiv:1602.01783, Algorithm S3. Networks and
loss are those of `a2c`: what differs is where, and with which weights, it is differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.algorithms.a2c import A2C, A2CConfig
from etude.config import GradientsConfig


@dataclass(frozen=True)
class A3CConfig(A2CConfig, GradientsConfig):
    """Hyperparameters of A3C: those of A2C, with a `rollout` of one environment for each gradient."""


class A3C(A2C):
    """A2C whose environments each compute gradients of their own rollouts, with weights that a learner moves on in the
    meantime."""

    learns_from = "gradients"
