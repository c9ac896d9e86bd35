"""Implicit Q-learning: values of the better actions in the data, without ever asking for one that is not there.

Kostrikov, Nair & Levine 2021, Offline reinforcement learning with implicit Q-learning, arXiv:2110.06169.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.policies import BoundedPolicy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.losses.offline import expectile, exponential_weight
from etude.losses.soft import lowest
from etude.losses.value import squared, td
from etude.networks import Maker, Part, target

LARGEST_WEIGHT = 100.0  # of one recorded action, as in the authors' code


@dataclass(frozen=True)
class IQLConfig(OfflineConfig):
    """Hyperparameters of IQL, besides those of every offline algorithm."""

    expectile: float = 0.7  # of the values of the actions in the data: 0.5 is their mean, 1 would be their highest
    beta: float | Linear = 3.0  # how much better actions are preferred: the inverse temperature of the policy
    tau: float = 0.005  # after every gradient step the target critics move this part of the way

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "expectile", "tau")
        checks.not_negative(self, "beta")


class IQL(Agent):
    """A critic of states that aims for the upper part of what the data's actions are worth, critics of actions that
    follow it, and a policy that imitates the better actions."""

    actions = (Box, Discrete)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.spaces = spaces
        critic, seen = self.config.critic_network, spaces.observation
        self.normaliser = make.normaliser(seen, self.config.normalize_observation)
        self.policy = BoundedPolicy(spaces)
        self.actor = self.policy.make(make, self.config.actor_network)
        self.state_value = make(critic, seen, outputs=1)
        if isinstance(spaces.action, Discrete):
            self.critic = make(critic, seen, outputs=int(spaces.action.n), members=2)
        else:
            self.critic = make(critic, (seen, spaces.action), outputs=1, members=2)
        self.critic_target = target(self.critic, tau="tau")

    def act(self, observation: Tree) -> Any:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.state_value(self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, observation = self.config, self.normaliser(batch.observation)
        value = self.value(batch.observation)
        held = ops.stop_gradient(lowest(self._values(self.critic_target, observation, batch.action)))
        state_value = expectile(held - value, config.expectile)

        q = self._values(self.critic, observation, batch.action)
        td_error = td(q, batch.reward, batch.discount, self.value(batch.next_observation))

        weight = exponential_weight(held - value, config.beta, LARGEST_WEIGHT)
        log_prob = self.act(batch.observation).log_prob(batch.action)
        return Losses(
            state_value=Loss(ops.mean(batch.weight * state_value), mean_value=ops.mean(value)),
            critic=Loss(
                ops.mean(batch.weight * ops.sum(squared(td_error), 0)),
                td_error=ops.mean(td_error, 0),
                q_value=ops.mean(q),
            ),
            actor=Loss(-ops.mean(batch.weight * weight * log_prob), imitation_weight=ops.mean(weight)),
        )

    def _values(self, critic: Part, observation: Tree, action: Any) -> Any:
        """The values of these actions by each of the two critics, [2, B]."""
        if isinstance(self.spaces.action, Discrete):
            return ops.sum(critic(observation) * ops.one_hot(action, int(self.spaces.action.n)), -1)
        return critic((observation, action))[:, :, 0]
