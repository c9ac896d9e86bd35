"""APPO: the clipped surrogate objective of PPO on V-trace advantages, with a target policy.

As RLlib describes it, https://docs.ray.io/en/latest/rllib/rllib-algorithms.html, after Schulman et al. 2017,
arXiv:1707.06347, and Espeholt et al. 2018, arXiv:1802.01561; the target policy as in Luo et al. 2020, IMPACT,
arXiv:1912.00167.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.impala import corrected, flat
from etude.algorithms.policies import Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import UnrollsConfig
from etude.losses.policy import ppo_clip, standardise
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.optimizers import Adam, Optimizer

LARGEST_RATIO = 2.0  # upper bound on the ratio of the acting policy to the target policy


@dataclass(frozen=True)
class APPOConfig(UnrollsConfig, StochasticPolicyConfig):
    """Hyperparameters of APPO, besides those of every algorithm that learns from unrolls."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    rollout_length: int = 50
    minibatch_size: int | None = 200
    epochs: int = 2
    max_gradient_norm: float | None = 0.5
    optimizer: Optimizer = Adam(epsilon=1e-5)
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    target_update_every: int = 8  # gradient steps between two updates of the target policy
    kl_coefficient: float | Linear = 0.0  # weight of the KL divergence from the target policy
    entropy_coefficient: float | Linear = 0.01  # entropy coefficient of the loss
    value_coefficient: float = 0.5  # value function coefficient of the loss
    normalize_advantage: bool = True  # standardise advantages in every minibatch
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip_range", "kl_coefficient", "value_coefficient")
        checks.counts(self, "target_update_every")


class APPO(Agent):
    """A stochastic policy with the clipped surrogate objective, and a critic of states, both on V-trace targets."""

    learns_from = "unrolls"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        acting = self.policy.make(make, self.config.actor_network, self.config.initial_log_std)
        self.model: dict[str, Part] = {
            **acting,
            "critic": make(self.config.critic_network, spaces.observation, outputs=1),
        }
        self.before: dict[str, Part] = {
            name: target(part, every="target_update_every") for name, part in acting.items()
        }

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.model["critic"](self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, observation, weight = self.config, flat(batch.observation), flat(batch.weight)
        action, acted = flat(batch.sampled_action), flat(batch.extras["log_prob"])
        policy, value = self.act(observation), self.value(observation)
        before = self.policy(self.before, observation, self.normaliser(observation))
        log_prob, log_prob_before = policy.log_prob(action), ops.stop_gradient(before.log_prob(action))
        next_value = self.value(flat(batch.next_observation))
        vtrace = corrected(batch, value, next_value, log_prob_before - acted, config)
        advantage = standardise(vtrace.advantage) if config.normalize_advantage else vtrace.advantage
        log_ratio = log_prob - acted + ops.minimum(acted - log_prob_before, math.log(LARGEST_RATIO))
        policy_loss = ops.mean(weight * ppo_clip(log_ratio, advantage, config.clip_range))
        value_loss = ops.mean(weight * ops.square(value - vtrace.target))
        entropy, kl = ops.mean(weight * policy.entropy()), ops.mean(weight * before.kl(policy))
        loss = (
            policy_loss
            + config.value_coefficient * value_loss
            - config.entropy_coefficient * entropy
            + config.kl_coefficient * kl
        )
        clipped = ops.abs(ops.exp(log_ratio) - 1.0) > config.clip_range
        return Losses(
            model=Loss(
                loss,
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy=entropy,
                kl=kl,
                clip_fraction=ops.mean(ops.cast(clipped, "float32")),
            )
        )
