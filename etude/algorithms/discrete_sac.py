"""Soft actor-critic for choices: the expectations over actions are computed, not sampled.

Christodoulou 2019, Soft actor-critic for discrete action settings, arXiv:1910.07207, equations 10 to 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Categorical
from etude.losses.soft import lowest, soft_discrete_actor, soft_temperature, soft_value
from etude.losses.value import squared, td
from etude.networks import Maker, Mlp, Spec, target


@dataclass(frozen=True)
class DiscreteSACConfig(OffPolicyConfig):
    """Hyperparameters of SAC for Discrete actions, besides those of every off-policy algorithm."""

    network: Spec = Mlp((256, 256))  # of the actor, and of each critic
    batch_size: int = 256
    tau: float = 0.005  # after every gradient step the target critics move this part of the way
    temperature: float = 1.0  # the price of certainty; where it is learned, its first value
    learn_temperature: bool = True  # whether it is learned
    target_entropy: float | None = None  # what it is learned for, in nats; None: 0.6 times the most, log(n)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "temperature")


class DiscreteSAC(Agent):
    """A stochastic policy over choices that earns reward and entropy, judged by the lower of two critics."""

    actions = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked, self.choices = spaces.masked, int(spaces.action.n)
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor = make(self.config.actor_network, spaces.observation, outputs=self.choices)
        self.critic = make(self.config.critic_network, spaces.observation, outputs=self.choices, members=2)
        self.critic_target = target(self.critic, tau="tau")
        if self.config.learn_temperature:
            self.temperature = make.free(np.log(self.config.temperature))

    def act(self, observation: Tree) -> Categorical:
        logits = self.actor(self.normaliser(observation))
        return Categorical(logits, observation[ACTION_MASK] > 0) if self.masked else Categorical(logits)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        observation, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)
        temperature = ops.exp(self.temperature()) if self.config.learn_temperature else self.config.temperature

        next_q = lowest(self.critic_target(following))
        next_value = soft_value(next_q, self.act(batch.next_observation), temperature)
        q = self.critic(observation)
        td_error = ops.stack(
            [td(ops.take_last(q[i], batch.action), batch.reward, batch.discount, next_value) for i in (0, 1)]
        )
        critic = ops.mean(batch.weight * ops.sum(squared(td_error), 0))

        policy = self.act(batch.observation)
        actor = ops.mean(batch.weight * soft_discrete_actor(lowest(q), policy, temperature))
        entropy = policy.entropy()

        losses = Losses(
            critic=Loss(critic, td_error=ops.mean(td_error, 0), q_value=ops.mean(q)),
            actor=Loss(actor, policy_entropy=ops.mean(entropy)),
        )
        if self.config.learn_temperature:
            most = math.log(self.choices)
            wanted = 0.6 * most if self.config.target_entropy is None else self.config.target_entropy
            loss = ops.mean(batch.weight * soft_temperature(self.temperature(), -entropy, wanted))
            losses["temperature"] = Loss(loss, alpha=temperature)
        return losses
