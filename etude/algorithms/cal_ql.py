"""Calibrated Q-learning: conservative Q-learning whose values stay above those of the policy that recorded the data, so
that training goes on online without unlearning first.

Nakamoto et al. 2023, Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning, arXiv:2303.05479,
equation 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.algorithms.cql import CQL, CQLConfig, SACBase
from etude.base.data import Batch
from etude.base.spaces import Box, Spaces


@dataclass(frozen=True)
class CalQLConfig(CQLConfig):
    """Hyperparameters of Cal-QL: those of CQL."""

    cql_alpha: float = 5.0  # weight of the conservative loss (its initial value if learned)


class CalQL(CQL):
    """CQL that lowers the value of an action of the policy no further than the return that was recorded from there."""

    learns_from = "transitions_and_returns"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)

    def base_for(self, spaces: Spaces) -> SACBase:
        return _CalibratedSACBase()


class _CalibratedSACBase(SACBase):
    """The SAC of CQL, with calibrated values of the policy's actions."""

    def sampled_values(self, agent: CQL, batch: Batch, actions: Any) -> Any:
        """[2, B, M]. Those of the policy's actions, two thirds, are at least the recorded return [B]; the uniform ones,
        the last third, are as they are."""
        values = super().sampled_values(agent, batch, actions)
        own = 2 * agent.config.samples
        recorded = ops.expand_dims(ops.expand_dims(batch.extras["return"], 0), -1)
        return ops.concatenate([ops.maximum(values[:, :, :own], recorded), values[:, :, own:]], -1)
