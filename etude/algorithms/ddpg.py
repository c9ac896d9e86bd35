"""Deep deterministic policy gradient.

Lillicrap et al. 2016, Continuous control with deep reinforcement learning, arXiv:1509.02971, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Deterministic
from etude.losses.policy import deterministic_policy_gradient
from etude.losses.value import squared, td
from etude.networks import Maker, Mlp, Spec, target


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of DDPG, besides those of every off-policy algorithm. Actions are in [-1, 1]."""

    network: Spec = Mlp((256, 256))  # of the actor, and of the critic
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.005  # after every gradient step the target networks move this part of the way
    random_steps: int = 1_000  # environment steps at the start that act uniformly at random
    exploration_noise: float | Linear = 0.1  # deviation of the noise on actions while collecting

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "random_steps", "exploration_noise")


class DDPG(Agent):
    """A deterministic policy that climbs a critic, which is trained towards the target critic at the action of the
    target policy."""

    acts_by = "actions"
    actions = (Box,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor = make(self.config.actor_network, spaces.observation, outputs=int(np.prod(spaces.action.shape)))
        self.critic = make(self.config.critic_network, (spaces.observation, spaces.action), outputs=1)
        self.actor_target = target(self.actor, tau="tau")
        self.critic_target = target(self.critic, tau="tau")

    def act(self, observation: Tree) -> Deterministic:
        return Deterministic(ops.tanh(self.actor(self.normaliser(observation))))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        observation, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)

        next_action = ops.tanh(self.actor_target(following))
        next_q = self.critic_target((following, next_action))[:, 0]
        q = self.critic((observation, batch.action))[:, 0]
        td_error = td(q, batch.reward, batch.discount, next_q)
        critic = ops.mean(batch.weight * squared(td_error))

        action = ops.tanh(self.actor(observation))
        chosen_q = self.critic((observation, action))[:, 0]
        actor = ops.mean(batch.weight * deterministic_policy_gradient(chosen_q))
        return Losses(
            critic=Loss(critic, td_error=td_error, q_value=ops.mean(q)),
            actor=Loss(actor, saturation=ops.mean(ops.abs(action))),
        )
