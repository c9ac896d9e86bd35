"""TD3+BC: a deterministic policy that improves on the recorded actions and stays near them.

Fujimoto & Gu 2021, A minimalist approach to offline reinforcement learning, arXiv:2106.06860, on top of
Fujimoto, van Hoof & Meger 2018, Addressing function approximation error in actor-critic methods, arXiv:1802.09477.
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
from etude.config import OfflineConfig
from etude.losses.distributions import Deterministic
from etude.losses.offline import action_error, td3_bc
from etude.losses.policy import smoothed
from etude.losses.soft import lowest
from etude.losses.value import squared, td
from etude.networks import Maker, Part, target


@dataclass(frozen=True)
class TD3BCConfig(OfflineConfig):
    """Hyperparameters of TD3+BC, besides those of every offline algorithm."""

    normalize_observation: bool = True
    alpha: float | Linear = 2.5  # how much values count beside the distance from the recorded actions
    tau: float = 0.005  # whenever the actor learns, the target networks move this part of the way
    target_noise: float = 0.2  # deviation of the noise on the target policy's actions
    target_noise_clip: float = 0.5  # where that noise is clipped
    policy_delay: int = 2  # gradient steps of the critics for one of the actor

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "alpha", "target_noise", "target_noise_clip")
        checks.counts(self, "policy_delay")


class TD3BC(Agent):
    """Two critics, the lower of which a deterministic policy climbs, held back by the distance from the data."""

    acts_by = "actions"
    actions = (Box,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        size = int(np.prod(spaces.action.shape))
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.actor = make(self.config.actor_network, spaces.observation, outputs=size)
        self.actor_target = target(self.actor, tau="tau", every="policy_delay")
        self.critic = make(self.config.critic_network, (spaces.observation, spaces.action), outputs=1, members=2)
        self.critic_target = target(self.critic, tau="tau", every="policy_delay")
        self.trained_every = {"actor": "policy_delay"}
        self.noise = {"target": (size,)}

    def act(self, observation: Tree) -> Deterministic:
        return Deterministic(ops.tanh(self.actor(self.normaliser(observation))))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, observation = self.config, self.normaliser(batch.observation)
        following = self.normaliser(batch.next_observation)

        next_action = ops.tanh(self.actor_target(following))
        next_action = smoothed(next_action, noise["target"], config.target_noise, config.target_noise_clip)
        next_q = lowest(self._values(self.critic_target, following, next_action))
        q = self._values(self.critic, observation, batch.action)
        td_error = td(q, batch.reward, batch.discount, next_q)

        action = ops.tanh(self.actor(observation))
        chosen_q = self.critic.member(0)((observation, action))[:, 0]
        actor = td3_bc(chosen_q, action, batch.action, config.alpha)
        return Losses(
            critic=Loss(
                ops.mean(batch.weight * ops.sum(squared(td_error), 0)),
                td_error=ops.mean(td_error, 0),
                q_value=ops.mean(q),
            ),
            actor=Loss(ops.mean(batch.weight * actor), action_error=ops.mean(action_error(action, batch.action))),
        )

    @staticmethod
    def _values(critic: Part, observation: Tree, action: Any) -> Any:
        """The values of each of the two critics, [2, B]."""
        return critic((observation, action))[:, :, 0]
