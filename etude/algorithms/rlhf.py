"""RLHF: a reward model of preferences, and PPO over whole games of tokens that is rewarded by it, and penalised for its
distance from a reference policy.

Christiano et al. 2017, Deep reinforcement learning from human preferences, arXiv:1706.03741; Ouyang et al. 2022,
Training language models to follow instructions with human feedback, arXiv:2203.02155, equations 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig
from etude.algorithms.dpo import paired
from etude.algorithms.token_policy import TokenPolicy, mean_over_games
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.config import GamesConfig, PairsConfig
from etude.losses.policy import ppo_clip, standardise
from etude.losses.preferences import bradley_terry, reference_kl, token_advantages
from etude.losses.value import td
from etude.networks import Maker, frozen


@dataclass(frozen=True)
class RewardModelConfig(PairsConfig, StochasticPolicyConfig):
    """Hyperparameters of a reward model: those of every algorithm that learns from pairs of recorded games."""

    learning_rate: float | Linear = 3e-4


class RewardModel(TokenPolicy):
    """Scores of whole games, higher for the better one of each pair. It acts by the policy that its run starts from."""

    learns_from = "token_pairs"

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        self.actor, self.reference = self.reference, {}
        self.reward_model: dict[str, Any] = {"score": make.tokens(self.config.critic_network, spaces.observation, 1)}

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        better, worse = paired(scores(self.reward_model, batch))
        weight, _ = paired(batch.weight)
        right = ops.cast(better > worse, "float32")
        return Losses(
            reward_model=Loss(ops.mean(weight * bradley_terry(better, worse)), accuracy=ops.mean(weight * right))
        )


@dataclass(frozen=True)
class RLHFConfig(GamesConfig, StochasticPolicyConfig):
    """Hyperparameters of PPO with a reward model, besides those of every algorithm that learns from whole games of its
    policy."""

    epochs: int = 4
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    kl_coefficient: float | Linear = 0.05  # what a nat of divergence from the reference costs, at every token
    critic_learning_rate: float | Linear = 1e-3  # of the critic

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "gae_lambda")
        checks.not_negative(self, "clip_range", "kl_coefficient")


class RLHF(TokenPolicy):
    """PPO whose reward is the score of a `RewardModel` at the end of a game, less the divergence from the reference.
    Rewards of the environment are not learned from."""

    learns_from = "token_games"

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        spec, seen = self.config.critic_network, spaces.observation
        self.reward_model: dict[str, Any] = {"score": frozen(make.tokens(spec, seen, 1))}
        self.given = {"reward_model": "reward_model"}
        self.critic: dict[str, Any] = {"value": make.tokens(spec, seen, 1)}

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, mine, following = self.config, batch.extras["mine"], batch.extras["next_place"]
        policy = self.of_games(self.actor, batch)
        log_prob, acted = mine * policy.log_prob(batch.action), mine * batch.extras["log_prob"]
        reference = ops.stop_gradient(mine * self.of_games(self.reference, batch).log_prob(batch.action))
        score = scores(self.reward_model, batch)
        last = mine * ops.cast(following == ops.max(following, -1, keepdims=True), "float32")
        reward = last * ops.expand_dims(score, -1) - config.kl_coefficient * (acted - reference)
        values = self.critic["value"].whole(batch.action)[..., 0]
        # Advantages are those of the critic as it is at each gradient step: Andrychowicz et al. 2021, arXiv:2006.05990.
        value, fixed = values[:, :-1], ops.stop_gradient(values)
        error = td(fixed[:, :-1], reward, batch.discount, ops.gather(fixed, following))
        by_time = (ops.swapaxes(x, 0, 1) for x in (error, mine, batch.discount))
        advantage: Any = token_advantages(*by_time, config.gae_lambda)  # type: ignore[call-arg]
        advantage = ops.stop_gradient(ops.swapaxes(advantage, 0, 1))
        target = advantage + fixed[:, :-1]
        if config.normalize_advantage:
            advantage = standardise(advantage, mine * ops.expand_dims(batch.weight, -1))
        surrogate = ppo_clip(log_prob - acted, advantage, config.clip_range)
        outside = ops.cast(ops.abs(ops.exp(log_prob - acted) - 1.0) > config.clip_range, "float32")
        return Losses(
            actor=Loss(
                mean_over_games(batch, surrogate),
                score=ops.mean(batch.weight * score),
                reference_kl=mean_over_games(batch, reference_kl(log_prob, reference)),
                entropy=mean_over_games(batch, policy.entropy()),
                clip_fraction=mean_over_games(batch, outside),
            ),
            critic=Loss(mean_over_games(batch, ops.square(value - target))),
        )


def scores(parts: dict[str, Any], batch: Batch) -> Any:
    """What a reward model says of the games of a batch, [B], after their last token."""
    return ops.take_last(parts["score"].whole(batch.action)[..., 0], ops.max(batch.extras["next_place"], -1))
