"""ReBRAC: TD3+BC with a penalty for the actor and one for the critics' targets, deeper networks, layer normalisation in
the critics and large batches.

Tarasov, Kurenkov, Nikulin & Kolesnikov 2023, Revisiting the minimalist approach to offline reinforcement learning,
arXiv:2305.09836, equations 3 and 4.
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
from etude.config import OfflineConfig
from etude.losses.distributions import Deterministic
from etude.losses.offline import rebrac_actor, squared_distance
from etude.losses.policy import smoothed
from etude.losses.value import td
from etude.networks import ActorCritic, Maker, Mlp, Normaliser, Part, Spec, target


@dataclass(frozen=True)
class ReBRACConfig(OfflineConfig):
    """Hyperparameters of ReBRAC, besides those of every offline algorithm."""

    network: Spec | ActorCritic = ActorCritic(Mlp((256, 256, 256)), Mlp((256, 256, 256), layer_norm=True))
    batch_size: int = 1024
    learning_rate: float | Linear = 1e-3
    actor_penalty: float | Linear = 1.0  # weight of the policy's squared distance from the recorded action (beta 1)
    critic_penalty: float | Linear = 1.0  # weight of that distance in the critics' targets (beta 2)
    tau: float = 0.005  # Polyak rate of the target networks, applied at every update of the actor
    target_noise: float = 0.2  # standard deviation of the noise on target actions (target policy smoothing)
    target_noise_clip: float = 0.5  # clip range of that noise
    policy_delay: int = 2  # gradient steps of the critics for each one of the actor

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "actor_penalty", "critic_penalty", "target_noise", "target_noise_clip")
        checks.counts(self, "policy_delay")


class ReBRAC(Agent):
    """TD3 whose policy, and whose target policy, are drawn to the recorded actions."""

    acts_by: ClassVar[ActsBy] = "actions"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True
    learns_from = "transitions_and_next_actions"

    def build(self, make: Maker, spaces: Spaces) -> None:
        size = int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor: Part = make(self.config.actor_network, spaces.observation, outputs=size)
        self.actor_target: Part = target(self.actor, tau="tau", every="policy_delay")
        self.critic: CriticEnsemble = CriticEnsemble.make(make, self.config.critic_network, spaces)
        self.critic_target: CriticEnsemble = target(self.critic, tau="tau", every="policy_delay")
        self.trained_every: dict[str, str] = {"actor": "policy_delay"}
        self.noise: dict[str, tuple[int, ...]] = {"target": (size,)}

    def act(self, observation: Tree) -> Deterministic:
        return Deterministic(ops.tanh(self.actor(self.normaliser(observation))))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        return Losses(critic=self.critic_loss(batch, noise["target"]), actor=self.actor_loss(batch))

    def critic_loss(self, batch: Batch, noise: Any) -> Loss:
        """Equation 4: errors of both critics [2, B] to the smaller target value of a smoothed target action, minus its
        squared distance from the action that was recorded next, where there is one."""
        config, following = self.config, self.normaliser(batch.next_observation)
        next_action = ops.tanh(self.actor_target(following))
        next_action = smoothed(next_action, noise, config.target_noise, config.target_noise_clip)
        distance = batch.extras["next_recorded"] * squared_distance(next_action, batch.extras["next_action"])
        next_q = self.critic_target.minimum(following, next_action) - config.critic_penalty * distance
        q = self.critic(self.normaliser(batch.observation), batch.action)
        return critic_ensemble_loss(td(q, batch.reward, batch.discount, next_q), batch.weight, q)

    def actor_loss(self, batch: Batch) -> Loss:
        """Equation 3, with the values divided by their mean size, as in the authors' code."""
        observation = self.normaliser(batch.observation)
        action = ops.tanh(self.actor(observation))
        q = self.critic.minimum(observation, action)
        loss = rebrac_actor(q, action, batch.action, self.config.actor_penalty)
        distance = squared_distance(action, batch.action)
        return Loss(ops.mean(batch.weight * loss), action_distance=ops.mean(distance))
