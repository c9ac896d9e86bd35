"""DPO: direct preference optimisation, from recorded games of which one returned more than another that began alike.

Rafailov et al. 2023, Direct preference optimization: your language model is secretly a reward model, arXiv:2305.18290.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig
from etude.algorithms.token_policy import TokenPolicy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.config import PairsConfig
from etude.losses.preferences import dpo


@dataclass(frozen=True)
class DPOConfig(PairsConfig, StochasticPolicyConfig):
    """Hyperparameters of DPO, besides those of every algorithm that learns from pairs of recorded games."""

    learning_rate: float | Linear = 1e-4
    beta: float | Linear = 0.1  # how much a log probability above the reference's counts as reward

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "beta")


class DPO(TokenPolicy):
    """A policy that is trained to prefer the better game of each pair, beyond what the reference does."""

    learns_from = "token_pairs"

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        mine = batch.extras["mine"]
        better, worse, better_reference, worse_reference = (
            game
            for parts in (self.actor, self.reference)
            for game in paired(ops.sum(mine * self.of_games(parts, batch).log_prob(batch.action), -1))
        )
        weight, _ = paired(batch.weight)
        gap = better - better_reference - (worse - worse_reference)
        loss = dpo(better, worse, better_reference, worse_reference, self.config.beta)
        return Losses(
            actor=Loss(
                ops.mean(weight * loss),
                accuracy=ops.mean(weight * ops.cast(gap > 0, "float32")),
                reward_gap=ops.mean(weight * self.config.beta * gap),
                better_log_prob=ops.mean(weight * better),
            )
        )


def paired(x: Any) -> tuple[Any, Any]:
    """[B] of the better and the worse game of each pair, one after the other: [B / 2] each."""
    pairs = ops.reshape(x, (-1, 2))
    return pairs[:, 0], pairs[:, 1]
