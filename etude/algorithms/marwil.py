"""MARWIL: behaviour cloning weighted by exponentiated advantages.

Wang et al. 2018, Exponentially weighted imitation learning for batched historical data, NeurIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import BoundedPolicy, Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.losses.offline import marwil
from etude.losses.value import squared, td
from etude.networks import Maker, Normaliser, Part


@dataclass(frozen=True)
class MARWILConfig(OfflineConfig, StochasticPolicyConfig):
    """Hyperparameters of MARWIL, besides those of every offline algorithm."""

    learning_rate: float | Linear = 1e-3
    beta: float | Linear = 1.0  # inverse temperature of normalised advantages; 0: behaviour cloning

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "beta")


class MARWIL(Agent):
    """A policy that imitates the data, with weights that grow with the advantage, and a critic of states."""

    learns_from = "returns"
    actions: ClassVar[tuple[type[Any], ...]] = BoundedPolicy.actions
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.policy: Policy = policy_for(self.config, spaces, BoundedPolicy)
        self.actor: dict[str, Part] = self.policy.make(make, self.config.actor_network)
        self.critic: Part = make(self.config.critic_network, spaces.observation, outputs=1)

    def act(self, observation: Tree) -> Any:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.critic(self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        value = self.value(batch.observation)
        advantage = td(value, batch.reward, batch.discount, self.value(batch.next_observation))
        typical = ops.sqrt(ops.replica_mean(ops.mean(ops.square(advantage)))) + 1e-8
        found = self.act(batch.observation)
        actor = marwil(found.log_prob(batch.action), advantage, self.config.beta, typical)
        return Losses(
            actor=Loss(ops.mean(batch.weight * actor), policy_entropy=ops.mean(found.entropy())),
            critic=Loss(
                ops.mean(batch.weight * squared(advantage)),
                td_error=advantage,
                mean_value=ops.mean(value),
                advantage_size=typical,
            ),
        )
