"""EDAC: SAC-N whose critics are diversified, so that a few of them suffice.

An, Moon, Kim & Song 2021, Uncertainty-based offline reinforcement learning with diversified Q-ensemble,
arXiv:2110.01548, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Loss
from etude.algorithms.sac import SAC, SACNConfig
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.losses.offline import gradient_similarity


@dataclass(frozen=True)
class EDACConfig(SACNConfig):
    """Hyperparameters of EDAC: those of SAC-N, and the weight of its loss."""

    diversity: float = 1.0  # weight eta of the similarity of critics (the paper: 0 to 5, of Adroit up to 1,000)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "diversity")
        if self.n_critics < 2:
            raise ConfigError(
                f"{type(self).__name__}: n_critics = {self.n_critics}; expected at least 2, whose gradients differ."
            )


class EDAC(SAC):
    """SAC whose critics' gradients by the recorded action point to different directions."""

    def critic_loss(self, batch: Batch, noise: Any, subset: Any = None) -> Loss:
        """Algorithm 1, line 6, halved like the squared errors of SAC."""
        loss = super().critic_loss(batch, noise, subset)
        gradients = self.critic.action_gradients(self.normaliser(batch.observation), batch.action)
        similarity = ops.mean(batch.weight * gradient_similarity(gradients))
        value = loss.value + 0.5 * self.config.diversity * similarity
        return Loss(value, loss.td_error, **loss.metrics, gradient_similarity=similarity)
