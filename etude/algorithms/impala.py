"""IMPALA: an actor-critic with V-trace, the off-policy correction for stale policies.

Espeholt et al. 2018, IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures,
arXiv:1802.01561.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import UnrollsConfig
from etude.losses.policy import policy_gradient
from etude.losses.returns import vtrace, vtrace_advantages
from etude.losses.value import td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec
from etude.optimizers import Adam, Optimizer


def flat(tree: Any) -> Any:
    """[B, T, ...] -> [B * T, ...]."""
    return trees.map(lambda x: ops.reshape(x, (-1, *tuple(x.shape)[2:])), tree)


class Corrected(NamedTuple):
    """V-trace targets and advantages of B * T steps, without gradients."""

    target: Any  # [B * T] targets of the values
    advantage: Any  # [B * T] including importance weights


def corrected(batch: Batch, value: Any, next_value: Any, log_ratio: Any, config: UnrollsConfig) -> Corrected:
    """V-trace over unrolls [B, T]; see `losses.returns`.

    value, next_value: [B * T] of the observations and of those that followed. log_ratio: [B * T] log probability of the
    actions minus that when they were taken.
    """
    shape = tuple(batch.weight.shape)

    def time_first(x: Any) -> Any:
        return ops.swapaxes(ops.reshape(ops.stop_gradient(x), shape), 0, 1)

    reward, discount, goes_on = (time_first(x) for x in (batch.reward, batch.discount, batch.extras["goes_on"]))
    value, next_value, log_ratio = time_first(value), time_first(next_value), time_first(log_ratio)
    error = td(value, reward, discount, next_value)
    correction = vtrace(error, discount, goes_on, log_ratio, config.trace_lambda, config.rho_bar, config.c_bar)
    advantage = vtrace_advantages(error, correction, discount, goes_on, log_ratio, config.trace_lambda, config.rho_bar)
    target, advantage = (ops.reshape(ops.swapaxes(x, 0, 1), (-1,)) for x in (value + correction, advantage))
    return Corrected(target, advantage)


ROUNDING = 1.001  # ratios of one policy, computed where it acted and where it learns, differ in their last digits


@dataclass(frozen=True)
class IMPALAConfig(UnrollsConfig, StochasticPolicyConfig):
    """Hyperparameters of IMPALA, besides those of every algorithm that learns from unrolls."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    learning_rate: float | Linear = 6e-4
    max_gradient_norm: float | None = 0.5
    optimizer: Optimizer = Adam(epsilon=1e-5)
    entropy_coefficient: float | Linear = 0.01  # entropy coefficient of the loss
    value_coefficient: float = 0.5  # value function coefficient of the loss
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "value_coefficient")


class IMPALA(Agent):
    """A stochastic policy and a critic of states, both on V-trace targets."""

    learns_from = "unrolls"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = {
            **self.policy.make(make, self.config.actor_network, self.config.initial_log_std),
            "critic": make(self.config.critic_network, spaces.observation, outputs=1),
        }

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.model["critic"](self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, observation, weight = self.config, flat(batch.observation), flat(batch.weight)
        policy, value = self.act(observation), self.value(observation)
        log_prob = policy.log_prob(flat(batch.sampled_action))
        log_ratio = log_prob - flat(batch.extras["log_prob"])
        vtrace = corrected(batch, value, self.value(flat(batch.next_observation)), log_ratio, config)
        policy_loss = ops.mean(weight * policy_gradient(log_prob, vtrace.advantage))
        value_loss = ops.mean(weight * ops.square(value - vtrace.target))
        entropy = ops.mean(weight * policy.entropy())
        ratio = ops.exp(log_ratio)
        return Losses(
            model=Loss(
                policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy,
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy=entropy,
                approx_kl=ops.mean(ratio - 1.0 - log_ratio),
                rho_clipped=ops.mean(ops.cast(ratio > ROUNDING * config.rho_bar, "float32")),
            )
        )
