"""Twin delayed deep deterministic policy gradient.

Fujimoto, van Hoof & Meger 2018, Addressing function approximation error in actor-critic methods, arXiv:1802.09477,
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.algorithms.critics import CriticEnsemble, critic_ensemble_loss
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Deterministic
from etude.losses.policy import deterministic_policy_gradient, smoothed
from etude.losses.value import td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.networks.random_shift import RandomShift


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of TD3, besides those of every off-policy algorithm. Actions are in [-1, 1]."""

    network: Spec = Mlp((256, 256))  # actor and critic networks
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.005  # Polyak rate of the target networks, applied at every update of the actor
    random_steps: int = 1_000  # environment steps of uniformly random actions before the policy acts
    exploration_noise: float | Linear = 0.1  # standard deviation of the Gaussian exploration noise
    target_noise: float = 0.2  # standard deviation of the noise on target actions (target policy smoothing)
    target_noise_clip: float = 0.5  # clip range of that noise
    policy_delay: int = 2  # gradient steps of the critics for each one of the actor
    random_shift: int = 0  # shift images randomly by up to so many pixels in every batch (DrQ); 0: off

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "random_steps", "exploration_noise", "target_noise", "target_noise_clip")
        checks.not_negative(self, "random_shift")
        checks.counts(self, "policy_delay")


class TD3(Agent):
    """A deterministic policy that maximises the first of two critics; both bootstrap from their smaller value."""

    acts_by: ClassVar[ActsBy] = "actions"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        size = int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.random_shift: RandomShift = make.random_shift(spaces.observation, self.config.random_shift)
        self.actor: Part = make(self.config.actor_network, spaces.observation, outputs=size)
        self.critic: CriticEnsemble = CriticEnsemble.make(make, self.config.critic_network, spaces)
        self.actor_target: Part = target(self.actor, tau="tau", every="policy_delay")
        self.critic_target: CriticEnsemble = target(self.critic, tau="tau", every="policy_delay")
        self.trained_every: dict[str, str] = {"actor": "policy_delay"}
        self.noise: dict[str, tuple[int, ...]] = {"target": (size,), **self.random_shift.noise}

    def act(self, observation: Tree) -> Deterministic:
        return Deterministic(ops.tanh(self.actor(self.normaliser(observation))))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        batch = self.random_shift(batch, noise)
        return Losses(critic=self.critic_loss(batch, noise["target"]), actor=self.actor_loss(batch))

    def critic_loss(self, batch: Batch, noise: Any) -> Loss:
        """Temporal-difference errors of both critics to the smaller target value of a smoothed target action."""
        config, following = self.config, self.normaliser(batch.next_observation)
        next_action = ops.tanh(self.actor_target(following))
        next_action = smoothed(next_action, noise, config.target_noise, config.target_noise_clip)
        next_q = self.critic_target.minimum(following, next_action)
        q = self.critic(self.normaliser(batch.observation), batch.action)
        return critic_ensemble_loss(td(q, batch.reward, batch.discount, next_q), batch.weight, q)

    def actor_loss(self, batch: Batch) -> Loss:
        """The deterministic policy gradient through the first critic."""
        observation = self.normaliser(batch.observation)
        action = ops.tanh(self.actor(observation))
        loss = deterministic_policy_gradient(self.critic.first(observation, action))
        return Loss(ops.mean(batch.weight * loss), saturation=ops.mean(ops.abs(action), -1))
