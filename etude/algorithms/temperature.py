"""The entropy temperature alpha of soft actor-critic: a hyperparameter, or learned.

Haarnoja et al. 2018, Soft actor-critic algorithms and applications, arXiv:1812.05905, section 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import ops
from etude.agent import Loss, Losses
from etude.base import checks
from etude.losses.soft import soft_temperature
from etude.networks import Part


def check_temperature(config: Any) -> None:
    """Raise ConfigError for a temperature below 0, or of 0 where its log is learned."""
    (checks.positive if config.learn_temperature else checks.not_negative)(config, "temperature")


class LearnedTemperature(Part):
    """Log alpha, a trained number that brings the policy's entropy to a target.

    initial: alpha before the first gradient step.
    """

    def __init__(self, initial: float):
        self.variables: dict[str, Any] = {"value": np.asarray(np.log(initial), np.float32)}

    def alpha(self, config: Any) -> Any:
        """alpha, a scalar."""
        return ops.exp(self.variables["value"])

    def losses(self, log_prob: Any, weight: Any, target_entropy: Any) -> Losses:
        """Equation 18, as the loss `temperature`. log_prob: [B], of the policy's actions; weight: [B];
        target_entropy: a number, or [B]."""
        log_alpha = self.variables["value"]
        loss = ops.mean(weight * soft_temperature(log_alpha, log_prob, target_entropy))
        return Losses(temperature=Loss(loss, alpha=ops.exp(log_alpha)))


class FixedTemperature(Part):
    """alpha is the config's `temperature`, which may change during a run; there is nothing to train."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def alpha(self, config: Any) -> Any:
        """alpha, a scalar."""
        return config.temperature

    def losses(self, log_prob: Any, weight: Any, target_entropy: Any) -> Losses:
        """None."""
        return Losses()


def entropy_temperature(config: Any) -> LearnedTemperature | FixedTemperature:
    """What a config with `temperature` and `learn_temperature` asks for."""
    return LearnedTemperature(config.temperature) if config.learn_temperature else FixedTemperature()
