"""Soft actor-critic with two critics and a learned temperature.

Haarnoja et al. 2018, Soft actor-critic algorithms and applications, arXiv:1812.05905, equations 5 to 9 and 18.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import SampledConfig
from etude.losses.distributions import TanhGaussian
from etude.losses.soft import lowest, soft_actor, soft_target, soft_temperature
from etude.losses.value import squared
from etude.networks import Maker, Mlp, Spec, target

LOG_STD = (-20.0, 2.0)  # bounds on the policy's log standard deviation


@dataclass(frozen=True)
class SACConfig(SampledConfig):
    """Hyperparameters of SAC, besides those of every off-policy algorithm."""

    network: Spec = Mlp((256, 256))  # of the actor, and of each critic
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    tau: float = 0.005  # after every gradient step the target critics move this part of the way
    temperature: float = 1.0  # the price of certainty; where it is learned, its first value
    learn_temperature: bool = True  # whether it is learned
    target_entropy: float | None = None  # what it is learned for, in nats; None: minus the size of an action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "temperature")


class SAC(Agent):
    """A stochastic policy that earns reward and entropy, judged by the lower of two critics."""

    actions = (Box,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        size = int(np.prod(spaces.action.shape))
        self.size = size
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor = make(self.config.actor_network, spaces.observation, outputs=2 * size)
        self.critic = make(self.config.critic_network, (spaces.observation, spaces.action), outputs=1, members=2)
        self.critic_target = target(self.critic, tau="tau")
        if self.config.learn_temperature:
            self.temperature = make.free(np.log(self.config.temperature))
        self.noise = {"action": (size,), "next_action": (size,)}

    def act(self, observation: Tree) -> TanhGaussian:
        x = self.actor(self.normaliser(observation))
        return TanhGaussian(x[:, : self.size], ops.clip(x[:, self.size :], *LOG_STD))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        observation = self.normaliser(batch.observation)
        temperature = ops.exp(self.temperature()) if self.config.learn_temperature else self.config.temperature

        next_action, next_log_prob = self.act(batch.next_observation).sample_with_log_prob(noise["next_action"])
        next_q = lowest(self._values(self.critic_target, self.normaliser(batch.next_observation), next_action))
        target = soft_target(batch.reward, batch.discount, next_q, next_log_prob, temperature)
        q = self._values(self.critic, observation, batch.action)
        td_error = ops.expand_dims(target, 0) - q
        critic = ops.mean(batch.weight * ops.sum(squared(td_error), 0))

        action, log_prob = self.act(batch.observation).sample_with_log_prob(noise["action"])
        chosen_q = lowest(self._values(self.critic, observation, action))
        actor = ops.mean(batch.weight * soft_actor(chosen_q, log_prob, temperature))

        losses = Losses(
            critic=Loss(critic, td_error=ops.mean(td_error, 0), q_value=ops.mean(q)),
            actor=Loss(actor, policy_entropy=-ops.mean(log_prob)),
        )
        if self.config.learn_temperature:
            wanted = -float(self.size) if self.config.target_entropy is None else self.config.target_entropy
            loss = ops.mean(batch.weight * soft_temperature(self.temperature(), log_prob, wanted))
            losses["temperature"] = Loss(loss, alpha=temperature)
        return losses

    @staticmethod
    def _values(critic: Any, observation: Tree, action: Any) -> Any:
        """The values of each of the two critics, [2, B]."""
        return critic((observation, action))[:, :, 0]
