"""Implicit Q-learning: no action outside the data is ever evaluated.

Kostrikov, Nair & Levine 2021, Offline reinforcement learning with implicit Q-learning, arXiv:2110.06169.
Garg et al. 2023, Extreme Q-learning: MaxEnt RL without entropy, arXiv:2301.02328: Gumbel regression in the place of
expectile regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.critics import CriticEnsemble, DiscreteTwinCritic, critic_ensemble_loss, twin_critic
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import BoundedPolicy, Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineToOnlineConfig
from etude.losses.offline import expectile, exponential_weight, gumbel_regression
from etude.losses.value import td
from etude.networks import Maker, Normaliser, Part, target

LARGEST_WEIGHT = 100.0  # upper bound on an action's weight, as in the authors' code


@dataclass(frozen=True)
class IQLConfig(OfflineToOnlineConfig, StochasticPolicyConfig):
    """Hyperparameters of IQL, besides those of every offline algorithm."""

    expectile: float = 0.7  # expectile of the value regression: 0.5 is the mean, 1 the maximum over the data's actions
    beta: float | Linear = 3.0  # inverse temperature of the advantage weights
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "expectile", "tau")
        checks.not_negative(self, "beta")


class IQL(Agent):
    """A state value that is an upper expectile of the values of the data's actions, twin critics that bootstrap from
    it, and a policy by advantage-weighted regression."""

    actions: ClassVar[tuple[type[Any], ...]] = (Box, Discrete)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        critic = self.config.critic_network
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.policy: Policy = policy_for(self.config, spaces, BoundedPolicy)
        self.actor: dict[str, Part] = self.policy.make(make, self.config.actor_network)
        self.state_value: Part = make(critic, spaces.observation, outputs=1)
        self.critic: CriticEnsemble | DiscreteTwinCritic = twin_critic(make, critic, spaces)
        self.critic_target: CriticEnsemble | DiscreteTwinCritic = target(self.critic, tau="tau")

    def act(self, observation: Tree) -> Any:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.state_value(self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        target_q = self.critic_target.minimum(self.normaliser(batch.observation), batch.action)
        value = self.value(batch.observation)
        advantage = ops.stop_gradient(target_q) - value
        return Losses(
            state_value=self.value_loss(batch, advantage, value),
            critic=self.critic_loss(batch),
            actor=self.actor_loss(batch, advantage),
        )

    def value_loss(self, batch: Batch, advantage: Any, value: Any) -> Loss:
        """Equation 5. advantage: [B], the target critics' values minus the state values [B]."""
        loss = expectile(advantage, self.config.expectile)
        return Loss(ops.mean(batch.weight * loss), mean_value=ops.mean(value))

    def critic_loss(self, batch: Batch) -> Loss:
        """Equation 6: one-step errors to the next state's value."""
        q = self.critic(self.normaliser(batch.observation), batch.action)
        td_error = td(q, batch.reward, batch.discount, self.value(batch.next_observation))
        return critic_ensemble_loss(td_error, batch.weight, q)

    def actor_loss(self, batch: Batch, advantage: Any) -> Loss:
        """Equation 7: advantage-weighted regression. advantage: [B]."""
        weight = exponential_weight(advantage, self.config.beta, LARGEST_WEIGHT)
        log_prob = self.act(batch.observation).log_prob(batch.action)
        return Loss(-ops.mean(batch.weight * weight * log_prob), imitation_weight=ops.mean(weight))


@dataclass(frozen=True)
class XQLConfig(OfflineToOnlineConfig, StochasticPolicyConfig):
    """Hyperparameters of XQL, besides those of every offline algorithm."""

    gumbel_temperature: float | Linear = 2.0  # beta of Gumbel regression: near 0 the maximum over the data's actions
    gumbel_clip: float = 7.0  # upper bound on advantage / gumbel_temperature in the regression
    beta: float | Linear = 3.0  # inverse temperature of the advantage weights
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "gumbel_temperature", "gumbel_clip")
        checks.fractions(self, "tau")
        checks.not_negative(self, "beta")


class XQL(IQL):
    """IQL whose state value is the soft maximum of the values of the data's actions: the log of the mean of their
    exponentials."""

    def value_loss(self, batch: Batch, advantage: Any, value: Any) -> Loss:
        """Equation 11. advantage: [B], the target critics' values minus the state values [B]."""
        loss = gumbel_regression(advantage, self.config.gumbel_temperature, self.config.gumbel_clip)
        return Loss(ops.mean(batch.weight * loss), mean_value=ops.mean(value))
