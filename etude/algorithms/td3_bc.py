"""TD3+BC: a deterministic policy that improves on the recorded actions and stays near them.

Fujimoto & Gu 2021, A minimalist approach to offline reinforcement learning, arXiv:2106.06860, on top of
Fujimoto, van Hoof & Meger 2018, Addressing function approximation error in actor-critic methods, arXiv:1802.09477.
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
from etude.config import OfflineToOnlineConfig
from etude.losses.distributions import Deterministic
from etude.losses.offline import action_error, td3_bc
from etude.losses.policy import smoothed
from etude.losses.value import td
from etude.networks import Maker, Normaliser, Part, target


@dataclass(frozen=True)
class TD3BCConfig(OfflineToOnlineConfig):
    """Hyperparameters of TD3+BC, besides those of every offline algorithm."""

    normalize_observation: bool = True
    alpha: float | Linear = 2.5  # weight of the normalised Q-value against the distance from the recorded action
    tau: float = 0.005  # Polyak rate of the target networks, applied at every update of the actor
    target_noise: float = 0.2  # standard deviation of the noise on target actions (target policy smoothing)
    target_noise_clip: float = 0.5  # clip range of that noise
    policy_delay: int = 2  # gradient steps of the critics for each one of the actor
    random_steps: int = 0  # online: environment steps of uniformly random actions before the policy acts
    exploration_noise: float | Linear = 0.1  # online: standard deviation of the Gaussian exploration noise

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "alpha", "target_noise", "target_noise_clip", "random_steps", "exploration_noise")
        checks.counts(self, "policy_delay")


class TD3BC(Agent):
    """TD3 whose policy is also drawn to the recorded actions."""

    acts_by: ClassVar[ActsBy] = "actions"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

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
        """That of TD3: errors of both critics to the smaller target value of a smoothed target action."""
        config, following = self.config, self.normaliser(batch.next_observation)
        next_action = ops.tanh(self.actor_target(following))
        next_action = smoothed(next_action, noise, config.target_noise, config.target_noise_clip)
        next_q = self.critic_target.minimum(following, next_action)
        q = self.critic(self.normaliser(batch.observation), batch.action)
        return critic_ensemble_loss(td(q, batch.reward, batch.discount, next_q), batch.weight, q)

    def actor_loss(self, batch: Batch) -> Loss:
        """Equation 5: the normalised value of the policy's action, and its distance from the recorded one."""
        observation = self.normaliser(batch.observation)
        action = ops.tanh(self.actor(observation))
        loss = td3_bc(self.critic.first(observation, action), action, batch.action, self.config.alpha)
        return Loss(ops.mean(batch.weight * loss), action_error=ops.mean(action_error(action, batch.action)))
