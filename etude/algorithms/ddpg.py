"""Deep deterministic policy gradient.

Lillicrap et al. 2016, Continuous control with deep reinforcement learning, arXiv:1509.02971, algorithm 1.
Horgan et al. 2018, Distributed prioritized experience replay, arXiv:1803.00933, section 4.2 and its appendix: Ape-X,
DDPG for many actors, with per-actor noise and initial priorities computed by the actors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Deterministic
from etude.losses.policy import deterministic_policy_gradient
from etude.losses.value import squared, td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of DDPG, besides those of every off-policy algorithm. Actions are in [-1, 1]."""

    network: Spec = Mlp((256, 256))  # actor and critic networks
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.005  # Polyak rate of the target networks, applied after every gradient step
    random_steps: int = 1_000  # environment steps of uniformly random actions before the policy acts
    exploration_noise: float | Linear = 0.1  # standard deviation of the Gaussian exploration noise

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "random_steps", "exploration_noise")


class DDPG(Agent):
    """A deterministic policy that maximises a critic, which bootstraps from a target critic at the action of a target
    policy."""

    acts_by: ClassVar[ActsBy] = "actions"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor: Part = make(
            self.config.actor_network, spaces.observation, outputs=int(np.prod(spaces.action.shape))
        )
        self.critic: Part = make(self.config.critic_network, (spaces.observation, spaces.action), outputs=1)
        self.actor_target: Part = target(self.actor, tau="tau")
        self.critic_target: Part = target(self.critic, tau="tau")

    def act(self, observation: Tree) -> Deterministic:
        return Deterministic(ops.tanh(self.actor(self.normaliser(observation))))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        return Losses(critic=self.critic_loss(batch), actor=self.actor_loss(batch))

    def critic_loss(self, batch: Batch) -> Loss:
        """The temporal-difference error to the target critic at the target policy's action."""
        following = self.normaliser(batch.next_observation)
        next_action = ops.tanh(self.actor_target(following))
        next_q = self.critic_target((following, next_action))[:, 0]
        q = self.critic((self.normaliser(batch.observation), batch.action))[:, 0]
        td_error = td(q, batch.reward, batch.discount, next_q)
        return Loss(ops.mean(batch.weight * squared(td_error)), td_error=td_error, q_value=q)

    def actor_loss(self, batch: Batch) -> Loss:
        """The deterministic policy gradient."""
        observation = self.normaliser(batch.observation)
        action = ops.tanh(self.actor(observation))
        loss = deterministic_policy_gradient(self.critic((observation, action))[:, 0])
        return Loss(ops.mean(batch.weight * loss), saturation=ops.mean(ops.abs(action), -1))


@dataclass(frozen=True)
class ApexDDPGConfig(DDPGConfig):
    """Hyperparameters of Ape-X DDPG, for many environments and workers."""

    exploration_noise: float | Linear = 0.4
    exploration_exponent: float = 7.0
    actor_priorities: bool = True
    priority_exponent: float = 0.6
    importance_exponent: float | Linear = 0.4
    n_step: int = 3
    learning_rate: float | Linear = 1e-4
    train_every: int = 256  # environment steps between two learning phases; actors compute priorities once per phase
    gradient_steps: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "exploration_noise")  # a power of more than 1 would grow along the environments
