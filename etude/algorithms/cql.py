"""Conservative Q-learning: actions that are not in the data are not believed to be better than those that are.

Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning, arXiv:2006.04779, equation 4 and
appendix F. On double DQN for Discrete actions, on SAC for Box ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.losses.distributions import TanhGaussian
from etude.losses.masks import masked
from etude.losses.offline import cql_gap, cql_sampled_gap
from etude.losses.soft import lowest, soft_actor, soft_temperature
from etude.losses.value import double_q, huber, squared, td
from etude.networks import Maker, Part, target

LOG_STD = (-20.0, 2.0)  # bounds on the policy's log standard deviation


@dataclass(frozen=True)
class CQLConfig(OfflineConfig):
    """Hyperparameters of CQL, besides those of every offline algorithm."""

    cql_alpha: float = 1.0  # weight of the gap; where it is learned, its first value
    target_gap: float | None = None  # learn the weight, so that the gap becomes this (Lagrange); None: fixed
    tau: float = 0.005  # after every gradient step the target critics move this part of the way
    samples: int = 10  # Box actions: actions drawn from each of three sources for an estimate of the gap
    temperature: float = 1.0  # Box actions: the first price of certainty, learned for minus the size of an action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.not_negative(self, "cql_alpha")
        checks.positive(self, "temperature")
        checks.counts(self, "samples")


class CQL(Agent):
    """Q-learning in which the values of all actions are pushed down, and that of the recorded one up."""

    actions = (Discrete, Box)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked = spaces.masked
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.ground = OnDQN() if isinstance(spaces.action, Discrete) else OnSAC()
        self.ground.build(self, make, spaces)
        if self.config.target_gap is not None:
            self.weight = make.free(np.log(max(self.config.cql_alpha, 1e-8)))

    def act(self, observation: Tree) -> Any:
        return self.ground.act(self, observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        losses, gap = self.ground.loss(self, batch, noise)
        weight = self.config.cql_alpha
        if self.config.target_gap is not None:
            weight = ops.exp(self.weight())
            losses["weight"] = Loss(weight * ops.stop_gradient(self.config.target_gap - gap), cql_alpha=weight)
        critic = losses["critic"]
        critic.value = critic.value + self.ground.critics * ops.stop_gradient(weight) * gap
        critic.metrics["gap"] = gap
        return losses


class OnDQN:
    """Discrete actions: values of all of them, which also act."""

    critics = 1

    def build(self, agent: CQL, make: Maker, spaces: Spaces) -> None:
        agent.critic = make(agent.config.critic_network, spaces.observation, outputs=int(spaces.action.n))
        agent.critic_target = target(agent.critic, tau="tau")

    def act(self, agent: CQL, observation: Tree) -> Any:
        return self._of(agent, agent.critic(agent.normaliser(observation)), observation)

    def loss(self, agent: CQL, batch: Batch, noise: dict[str, Any]) -> tuple[Losses, Any]:
        """The losses of double DQN, and the mean gap."""
        q, following = agent.critic(agent.normaliser(batch.observation)), agent.normaliser(batch.next_observation)
        next_q, chooser = (
            agent.critic_target(following),
            self._of(agent, agent.critic(following), batch.next_observation),
        )
        td_error = double_q(q, batch.action, batch.reward, batch.discount, next_q, chooser)
        loss = Loss(
            ops.mean(batch.weight * huber(td_error)),
            td_error=td_error,
            q_value=ops.mean(ops.take_last(q, batch.action)),
        )
        return Losses(critic=loss), ops.mean(
            batch.weight * cql_gap(self._of(agent, q, batch.observation), batch.action)
        )

    @staticmethod
    def _of(agent: CQL, values: Any, observation: Tree) -> Any:
        """Values [N, n] with the mask of these observations, where there is one."""
        return masked(values, observation[ACTION_MASK]) if agent.masked else values


class OnSAC:
    """Box actions: two critics, and a policy that earns value and entropy. The target holds no entropy."""

    critics = 2

    def build(self, agent: CQL, make: Maker, spaces: Spaces) -> None:
        self.size = size = int(np.prod(spaces.action.shape))
        agent.actor = make(agent.config.actor_network, spaces.observation, outputs=2 * size)
        agent.critic = make(agent.config.critic_network, (spaces.observation, spaces.action), outputs=1, members=2)
        agent.critic_target = target(agent.critic, tau="tau")
        agent.temperature = make.free(np.log(agent.config.temperature))
        count = agent.config.samples
        agent.noise = {"action": (size,), "next_action": (size,), "here": (count, size), "after": (count, size)}
        agent.noise["uniform"] = (2, count, size)

    def act(self, agent: CQL, observation: Tree) -> TanhGaussian:
        x = agent.actor(agent.normaliser(observation))
        return TanhGaussian(x[:, : self.size], ops.clip(x[:, self.size :], *LOG_STD))

    def loss(self, agent: CQL, batch: Batch, noise: dict[str, Any]) -> tuple[Losses, Any]:
        """The losses of SAC, and the mean gap of a critic."""
        observation, following = agent.normaliser(batch.observation), agent.normaliser(batch.next_observation)
        here, after = self.act(agent, batch.observation), self.act(agent, batch.next_observation)
        log_temperature = agent.temperature()

        next_q = lowest(self._values(agent.critic_target, following, after.sample(noise["next_action"])))
        q = self._values(agent.critic, observation, batch.action)
        td_error = td(q, batch.reward, batch.discount, next_q)

        action, log_prob = here.sample_with_log_prob(noise["action"])
        chosen_q = lowest(self._values(agent.critic, observation, action))
        actor = ops.mean(batch.weight * soft_actor(chosen_q, log_prob, ops.exp(log_temperature)))
        price = ops.mean(batch.weight * soft_temperature(log_temperature, log_prob, -float(self.size)))
        losses = Losses(
            critic=Loss(
                ops.mean(batch.weight * ops.sum(squared(td_error), 0)),
                td_error=ops.mean(td_error, 0),
                q_value=ops.mean(q),
            ),
            actor=Loss(actor, policy_entropy=-ops.mean(log_prob)),
            temperature=Loss(price, alpha=ops.exp(log_temperature)),
        )
        sampled, density = self._sampled(here, after, noise)
        gap = cql_sampled_gap(self._values_of_many(agent.critic, observation, sampled), density, q)
        return losses, ops.mean(batch.weight * ops.mean(gap, 0))

    def _sampled(self, here: TanhGaussian, after: TanhGaussian, noise: dict[str, Any]) -> tuple[Any, Any]:
        """Actions [B, M, A] for an integral over all of them, and the log densities [B, M] that they were drawn with:
        uniform ones, and those of the policy at this and at the next observation."""
        drawn = [_many(policy).sample_with_log_prob(noise[name]) for policy, name in ((here, "here"), (after, "after"))]
        # Half the sum of two squared normal numbers is exponential, and exp(-x) of that uniform.
        uniform = 1.0 - 2.0 * ops.exp(-0.5 * ops.sum(ops.square(noise["uniform"]), 1))
        drawn.append((uniform, drawn[0][1] * 0.0 - self.size * math.log(2.0)))
        actions, densities = zip(*drawn, strict=True)
        return ops.stop_gradient(ops.concatenate(actions, 1)), ops.concatenate(densities, 1)

    @staticmethod
    def _values(critic: Part, observation: Tree, action: Any) -> Any:
        """The values of each of the two critics, [2, B]."""
        return critic((observation, action))[:, :, 0]

    def _values_of_many(self, critic: Part, observation: Tree, actions: Any) -> Any:
        """The values of M actions [B, M, A] for each observation: [2, B, M]."""
        many = actions.shape[1]
        repeated = trees.map(lambda leaf: ops.concatenate([leaf] * many, 0), observation)
        q = self._values(critic, repeated, ops.reshape(ops.swapaxes(actions, 0, 1), (-1, self.size)))
        return ops.swapaxes(ops.reshape(q, (2, many, -1)), 1, 2)


def _many(policy: TanhGaussian) -> TanhGaussian:
    """The same policy with an axis for several actions for each observation."""
    return TanhGaussian(ops.expand_dims(policy.mean, 1), ops.expand_dims(policy.log_std, 1))
