"""Conservative Q-learning: Q-learning from recorded data that lowers the values of actions outside the data.

Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning, arXiv:2006.04779, equation 4 and
appendix F. It regularises double DQN for Discrete actions and SAC for Box ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.algorithms.critics import CriticEnsemble, critic_ensemble_loss
from etude.algorithms.sac import LearnedTemperature
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Box, Discrete, Space, Spaces
from etude.base.trees import Tree
from etude.config import OfflineToOnlineConfig
from etude.losses.distributions import TanhGaussian
from etude.losses.masks import masked
from etude.losses.offline import cql_gap, cql_sampled_gap
from etude.losses.soft import soft_actor
from etude.losses.value import double_q, huber, td
from etude.networks import Maker, Normaliser, Part, target

LOG_STD = (-20.0, 2.0)  # bounds on the policy's log standard deviation


@dataclass(frozen=True)
class CQLConfig(OfflineToOnlineConfig):
    """Hyperparameters of CQL, besides those of every offline algorithm."""

    cql_alpha: float = 1.0  # weight of the conservative loss (its initial value if learned)
    target_gap: float | None = None  # learn the weight so that the gap is this (Lagrange threshold); None: fixed
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step
    samples: int = 10  # Box actions: sampled actions from each of three sources for the conservative loss
    temperature: float = 1.0  # Box actions: initial entropy temperature alpha; target entropy: -(action dimension)
    epsilon: float | Linear = 0.05  # online, Discrete actions: probability of a random action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau", "epsilon")
        checks.not_negative(self, "cql_alpha")
        checks.positive(self, "temperature")
        checks.counts(self, "samples")


class CQL(Agent):
    """Q-learning plus a conservative loss: the gap between the values of all actions and of the recorded one."""

    actions: ClassVar[tuple[type[Space], ...]] = (Discrete, Box)
    bounded_actions = True
    actor: Part  # parts that `base` builds
    critic: Any
    critic_target: Any
    temperature: LearnedTemperature

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.base: DoubleDQNBase | SACBase = self.base_for(spaces)
        self.base.build(self, make, spaces)
        self.weight: FixedWeight | LagrangeWeight = (
            FixedWeight() if self.config.target_gap is None else LagrangeWeight(self.config.cql_alpha)
        )

    def base_for(self, spaces: Spaces) -> DoubleDQNBase | SACBase:
        """What is made conservative."""
        return DoubleDQNBase() if isinstance(spaces.action, Discrete) else SACBase()

    def act(self, observation: Tree) -> Any:
        return self.base.act(self, observation)

    def acts_for(self, action: Space) -> ActsBy:
        return "values" if isinstance(action, Discrete) else "distribution"

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        losses, gap = self.base.losses(self, batch, noise)
        losses["critic"] = self.critic_loss(losses["critic"], gap)
        losses.update(self.weight.losses(self.config, gap))
        return losses

    def critic_loss(self, base: Loss, gap: Any) -> Loss:
        """Equation 4. base: the temporal-difference loss; gap: the mean gap, a scalar."""
        weight = ops.stop_gradient(self.weight.alpha(self.config))
        return Loss(base.value + self.base.critics * weight * gap, base.td_error, **base.metrics, gap=gap)


class FixedWeight(Part):
    """The weight of the gap is the config's `cql_alpha`; there is nothing to train."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def alpha(self, config: Any) -> Any:
        """The weight, a scalar."""
        return config.cql_alpha

    def losses(self, config: Any, gap: Any) -> Losses:
        """None."""
        return Losses()


class LagrangeWeight(Part):
    """The log of a weight that dual gradient descent learns, so that the gap comes to `target_gap`. Appendix F."""

    def __init__(self, initial: float):
        self.variables: dict[str, Any] = {"value": np.asarray(np.log(max(initial, 1e-8)), np.float32)}

    def alpha(self, config: Any) -> Any:
        """The weight, a scalar."""
        return ops.exp(self.variables["value"])

    def losses(self, config: Any, gap: Any) -> Losses:
        """The dual loss, as the loss `weight`."""
        weight = self.alpha(config)
        return Losses(weight=Loss(weight * ops.stop_gradient(config.target_gap - gap), cql_alpha=weight))


class DoubleDQNBase:
    """Double DQN, for Discrete actions: a critic of every action, which also acts."""

    critics = 1

    def build(self, agent: CQL, make: Maker, spaces: Spaces) -> None:
        agent.critic = make(agent.config.critic_network, spaces.observation, outputs=int(spaces.action.n))
        agent.critic_target = target(agent.critic, tau="tau")

    def act(self, agent: CQL, observation: Tree) -> Any:
        return self._masked(agent, agent.critic(agent.normaliser(observation)), observation)

    def losses(self, agent: CQL, batch: Batch, noise: dict[str, Any]) -> tuple[Losses, Any]:
        """The critic's loss, and the mean gap."""
        q, following = agent.critic(agent.normaliser(batch.observation)), agent.normaliser(batch.next_observation)
        next_q = agent.critic_target(following)
        selector = self._masked(agent, agent.critic(following), batch.next_observation)
        td_error = double_q(q, batch.action, batch.reward, batch.discount, next_q, selector)
        critic = Loss(
            ops.mean(batch.weight * huber(td_error)),
            td_error=td_error,
            q_value=ops.mean(ops.take_last(q, batch.action)),
        )
        gap = cql_gap(self._masked(agent, q, batch.observation), batch.action)
        return Losses(critic=critic), ops.mean(batch.weight * gap)

    @staticmethod
    def _masked(agent: CQL, values: Any, observation: Tree) -> Any:
        """Values [N, n] with the mask of these observations, where there is one."""
        return masked(values, observation[ACTION_MASK]) if agent.masked else values


class SACBase:
    """SAC without entropy in the critics' targets, for Box actions."""

    critics = 2

    def build(self, agent: CQL, make: Maker, spaces: Spaces) -> None:
        self.size: int = (size := int(np.prod(spaces.action.shape)))
        agent.actor = make(agent.config.actor_network, spaces.observation, outputs=2 * size)
        agent.critic = CriticEnsemble.make(make, agent.config.critic_network, spaces)
        agent.critic_target = target(agent.critic, tau="tau")
        agent.temperature = LearnedTemperature(agent.config.temperature)
        count = agent.config.samples
        agent.noise = {"action": (size,), "next_action": (size,), "here": (count, size), "after": (count, size)}
        agent.noise["uniform"] = (2, count, size)

    def act(self, agent: CQL, observation: Tree) -> TanhGaussian:
        x = agent.actor(agent.normaliser(observation))
        return TanhGaussian(x[:, : self.size], ops.clip(x[:, self.size :], *LOG_STD))

    def losses(self, agent: CQL, batch: Batch, noise: dict[str, Any]) -> tuple[Losses, Any]:
        """The losses of SAC, and the mean gap of a critic."""
        policy, next_policy = self.act(agent, batch.observation), self.act(agent, batch.next_observation)
        q = agent.critic(agent.normaliser(batch.observation), batch.action)
        action, log_prob = policy.sample_with_log_prob(noise["action"])
        losses = Losses(
            critic=self.critic_loss(agent, batch, q, next_policy.sample(noise["next_action"])),
            actor=self.actor_loss(agent, batch, action, log_prob),
            **agent.temperature.losses(log_prob, batch.weight, -float(self.size)),
        )
        # Actions [B, M, A] for an integral over all of them, and the log densities [B, M] that they were drawn with:
        # those of the policy at this and at the next observation, then uniform ones; a third of each
        drawn = [_many(policy).sample_with_log_prob(noise["here"])]
        drawn.append(_many(next_policy).sample_with_log_prob(noise["after"]))
        # Half the sum of two squared normal numbers is exponential, and exp(-x) of that uniform.
        uniform = 1.0 - 2.0 * ops.exp(-0.5 * ops.sum(ops.square(noise["uniform"]), 1))
        drawn.append((uniform, drawn[0][1] * 0.0 - self.size * math.log(2.0)))
        actions, densities = zip(*drawn, strict=True)
        sampled = ops.stop_gradient(ops.concatenate(actions, 1)), ops.concatenate(densities, 1)
        return losses, self.gap(agent, batch, q, sampled)

    def critic_loss(self, agent: CQL, batch: Batch, q: Any, next_action: Any) -> Loss:
        """Errors of both critics [2, B] to the smaller target value of the policy's next action [B, A]."""
        next_q = agent.critic_target.minimum(agent.normaliser(batch.next_observation), next_action)
        return critic_ensemble_loss(td(q, batch.reward, batch.discount, next_q), batch.weight, q)

    def actor_loss(self, agent: CQL, batch: Batch, action: Any, log_prob: Any) -> Loss:
        """That of SAC. action: [B, A] of the policy now, with its log_prob [B]."""
        q = agent.critic.minimum(agent.normaliser(batch.observation), action)
        loss = soft_actor(q, log_prob, agent.temperature.alpha(agent.config))
        return Loss(ops.mean(batch.weight * loss), policy_entropy=-ops.mean(log_prob))

    def gap(self, agent: CQL, batch: Batch, q: Any, sampled: tuple[Any, Any]) -> Any:
        """The mean gap over both critics, with the values q [2, B] of the recorded actions; appendix F.

        sampled: actions [B, M, A] and their log densities [B, M].
        """
        actions, density = sampled
        sampled_q = self.sampled_values(agent, batch, actions)
        return ops.mean(batch.weight * ops.mean(cql_sampled_gap(sampled_q, density, q), 0))

    def sampled_values(self, agent: CQL, batch: Batch, actions: Any) -> Any:
        """The values of M actions [B, M, A] for each observation: [2, B, M]."""
        many = actions.shape[1]
        observation = agent.normaliser(batch.observation)
        repeated = trees.map(lambda leaf: ops.concatenate([leaf] * many, 0), observation)
        q = agent.critic(repeated, ops.reshape(ops.swapaxes(actions, 0, 1), (-1, self.size)))
        return ops.swapaxes(ops.reshape(q, (2, many, -1)), 1, 2)


def _many(policy: TanhGaussian) -> TanhGaussian:
    """The same policy with an axis for several actions for each observation."""
    return TanhGaussian(ops.expand_dims(policy.mean, 1), ops.expand_dims(policy.log_std, 1))
