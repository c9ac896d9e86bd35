"""GRPO: group relative policy optimisation, over whole games of tokens.

Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, equations 3 and 4, with outcome supervision (section 4.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig
from etude.algorithms.token_policy import TokenPolicy, mean_over_games
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.config import GamesConfig
from etude.losses.policy import ppo_clip
from etude.losses.preferences import reference_kl


@dataclass(frozen=True)
class GRPOConfig(GamesConfig, StochasticPolicyConfig):
    """Hyperparameters of GRPO, besides those of every algorithm that learns from whole games of its policy."""

    group_size: int = 8  # environments next to each other whose games begin alike
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    kl_coefficient: float | Linear = 0.04  # coefficient of the divergence from the reference

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip_range", "kl_coefficient")


class GRPO(TokenPolicy):
    """A policy whose games are reinforced by how much more they return than others that began alike."""

    learns_from = "token_games"

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, mine, policy = self.config, batch.extras["mine"], self.of_games(self.actor, batch)
        log_prob = mine * policy.log_prob(batch.action)
        log_ratio = log_prob - mine * batch.extras["log_prob"]
        advantage = ops.expand_dims(batch.extras["advantage"], -1) * mine
        divergence = reference_kl(log_prob, mine * self.of_games(self.reference, batch).log_prob(batch.action))
        surrogate = ppo_clip(log_ratio, advantage, config.clip_range)
        outside = ops.cast(ops.abs(ops.exp(log_ratio) - 1.0) > config.clip_range, "float32")
        return Losses(
            actor=Loss(
                mean_over_games(batch, surrogate + config.kl_coefficient * divergence),
                policy_loss=mean_over_games(batch, surrogate),
                reference_kl=mean_over_games(batch, divergence),
                entropy=mean_over_games(batch, policy.entropy()),
                clip_fraction=mean_over_games(batch, outside),
            )
        )
