"""Advantage-weighted actor-critic: twin critics of the policy, which imitates the recorded actions that they prefer.

Nair, Gupta, Dalal & Levine 2020, AWAC: accelerating online reinforcement learning with offline datasets,
arXiv:2006.09359, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.critics import CriticEnsemble, critic_ensemble_loss
from etude.algorithms.policies import BoundedPolicy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OfflineToOnlineConfig
from etude.losses.distributions import Gaussian
from etude.losses.offline import exponential_weight
from etude.losses.soft import minimum
from etude.losses.value import td
from etude.networks import Maker, Normaliser, Part, target

LARGEST_WEIGHT = 100.0  # upper bound on an action's weight


@dataclass(frozen=True)
class AWACConfig(OfflineToOnlineConfig):
    """Hyperparameters of AWAC, besides those of every offline algorithm."""

    beta: float | Linear = 1.0  # inverse temperature of the advantage weights (1 / lambda of the paper); 0: cloning
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "beta")


class AWAC(Agent):
    """Twin critics that evaluate the policy, and a policy by regression to the recorded actions, weighted by the
    advantage of each over the policy's own action."""

    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        size = int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.policy: BoundedPolicy = BoundedPolicy(spaces)
        self.actor: dict[str, Part] = self.policy.make(make, self.config.actor_network)
        self.critic: CriticEnsemble = CriticEnsemble.make(make, self.config.critic_network, spaces)
        self.critic_target: CriticEnsemble = target(self.critic, tau="tau")
        self.noise: dict[str, tuple[int, ...]] = {"action": (size,), "next_action": (size,)}

    def act(self, observation: Tree) -> Gaussian:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        q = self.critic(self.normaliser(batch.observation), batch.action)
        return Losses(
            critic=self.critic_loss(batch, q, noise["next_action"]), actor=self.actor_loss(batch, q, noise["action"])
        )

    def critic_loss(self, batch: Batch, q: Any, noise: Any) -> Loss:
        """Policy evaluation: errors of both critics [2, B] to the smaller target value of a drawn action."""
        next_action = self._drawn(self.act(batch.next_observation), noise)
        next_q = self.critic_target.minimum(self.normaliser(batch.next_observation), next_action)
        return critic_ensemble_loss(td(q, batch.reward, batch.discount, next_q), batch.weight, q)

    def actor_loss(self, batch: Batch, q: Any, noise: Any) -> Loss:
        """Policy improvement: advantage-weighted regression, with the value of a state estimated by that of one drawn
        action. q: [2, B] of the recorded actions; no gradient flows into them."""
        found = self.act(batch.observation)
        value = self.critic.minimum(self.normaliser(batch.observation), self._drawn(found, noise))
        weight = exponential_weight(minimum(q) - value, self.config.beta, LARGEST_WEIGHT)
        loss = -ops.mean(batch.weight * weight * found.log_prob(batch.action))
        return Loss(loss, imitation_weight=ops.mean(weight), policy_entropy=ops.mean(found.entropy()))

    @staticmethod
    def _drawn(policy: Gaussian, noise: Any) -> Any:
        """An action of the policy, in the bounds of the space; no gradient flows into it."""
        return ops.stop_gradient(ops.clip(policy.sample(noise), -1.0, 1.0))
