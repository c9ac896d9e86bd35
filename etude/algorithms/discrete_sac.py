"""Soft actor-critic for Discrete actions: expectations over actions are computed, not sampled.

Christodoulou 2019, Soft actor-critic for discrete action settings, arXiv:1910.07207, equations 10 to 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.critics import DiscreteTwinCritic, critic_ensemble_loss
from etude.algorithms.sac import FixedTemperature, LearnedTemperature, check_temperature, entropy_temperature
from etude.base import checks
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Categorical
from etude.losses.soft import minimum, soft_discrete_actor, soft_value
from etude.losses.value import td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target


@dataclass(frozen=True)
class DiscreteSACConfig(OffPolicyConfig):
    """Hyperparameters of SAC for Discrete actions, besides those of every off-policy algorithm."""

    network: Spec = Mlp((256, 256))  # actor and critic networks
    batch_size: int = 256
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step
    temperature: float = 1.0  # entropy temperature alpha (its initial value if learned)
    learn_temperature: bool = True  # learn alpha so that the policy's entropy approaches target_entropy
    target_entropy: float | None = None  # target entropy in nats; None: 0.6 * log(n), n allowed actions

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        check_temperature(self)


class DiscreteSAC(Agent):
    """A stochastic policy over Discrete actions that maximises return and entropy, and twin critics."""

    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.choices: int = int(spaces.action.n)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor: Part = make(self.config.actor_network, spaces.observation, outputs=self.choices)
        self.critic: DiscreteTwinCritic = DiscreteTwinCritic.make(make, self.config.critic_network, spaces)
        self.critic_target: DiscreteTwinCritic = target(self.critic, tau="tau")
        self.temperature: LearnedTemperature | FixedTemperature = entropy_temperature(self.config)

    def act(self, observation: Tree) -> Categorical:
        logits = self.actor(self.normaliser(observation))
        return Categorical(logits, observation[ACTION_MASK] > 0) if self.masked else Categorical(logits)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        q, policy = self.critic.all(self.normaliser(batch.observation)), self.act(batch.observation)
        return Losses(
            critic=self.critic_loss(batch, q),
            actor=self.actor_loss(batch, q, policy),
            **self.temperature_loss(batch, policy),
        )

    def critic_loss(self, batch: Batch, q: Any) -> Loss:
        """Equation 10, with the smaller values of two target critics. q: [2, B, n] of every action."""
        next_q = minimum(self.critic_target.all(self.normaliser(batch.next_observation)))
        next_value = soft_value(next_q, self.act(batch.next_observation), self.temperature.alpha(self.config))
        td_error = td(self.critic.of(q, batch.action), batch.reward, batch.discount, next_value)
        return critic_ensemble_loss(td_error, batch.weight, ops.mean(q, -1))

    def actor_loss(self, batch: Batch, q: Any, policy: Categorical) -> Loss:
        """Equation 12. q: [2, B, n] of every action; policy: of the observations."""
        loss = soft_discrete_actor(minimum(q), policy, self.temperature.alpha(self.config))
        return Loss(ops.mean(batch.weight * loss), policy_entropy=policy.entropy())

    def temperature_loss(self, batch: Batch, policy: Categorical) -> Losses:
        """Equation 11; none where alpha is fixed."""
        target_entropy: Any = self.config.target_entropy
        if target_entropy is None and self.masked:
            target_entropy = 0.6 * ops.log(ops.sum(ops.cast(policy.allowed, "float32"), -1))
        elif target_entropy is None:
            target_entropy = 0.6 * math.log(self.choices)
        return self.temperature.losses(-policy.entropy(), batch.weight, target_entropy)
