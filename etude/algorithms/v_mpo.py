"""V-MPO: on-policy maximum a posteriori policy optimisation, with a critic of states in the place of one of actions.

Song et al. 2019, V-MPO: On-policy maximum a posteriori policy optimization for discrete and continuous control,
arXiv:1909.12238, section 4 and algorithm 1; advantages by Schulman et al. 2016, arXiv:1506.02438.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, LearnsFrom, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.mpo import METRICS, decoupled
from etude.algorithms.policies import Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig
from etude.losses.masks import NEVER
from etude.losses.policy import multiplier_dual, reweighted, standardise, temperature_dual
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target

LEAST_SHARE = 1e-30  # in the place of 0 where its logarithm is taken


@dataclass(frozen=True)
class VMPOConfig(OnPolicyConfig, StochasticPolicyConfig):
    """Hyperparameters of V-MPO, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    rollout_length: int = 256
    minibatch_size: int | None = None
    epochs: int = 20  # gradient steps on each rollout
    normalize_reward: bool = True
    dual_learning_rate: float = 0.001  # of the temperature and the multipliers, which Adam trains as logarithms
    epsilon: float = 0.1  # bound on the KL divergence of reweighted steps from the better half, in nats
    epsilon_mean: float = 0.01  # bound on that of the policy; Gaussian ones: by their mean alone
    epsilon_std: float = 1e-4  # Gaussian policies: bound on that by the standard deviation alone
    temperature: float = 1.0  # initial temperature that advantages are divided by
    multiplier: float = 5.0  # initial Lagrange multiplier of each bound on the policy
    normalize_advantage: bool = True  # standardise advantages over the rollout
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "dual_learning_rate")
        checks.positive(self, "epsilon", "epsilon_mean", "epsilon_std", "temperature", "multiplier")
        if self.minibatch_size is not None:
            raise ConfigError(
                f"{type(self).__name__}: minibatch_size = {self.minibatch_size}; the better half is that of the whole "
                "rollout. Leave it at None."
            )


class VMPO(Agent):
    """A stochastic policy, fitted to the better half of the steps by exponentiated advantages; a critic of states; dual
    variables of the bounds. The policy before is the one that collected the rollout."""

    learns_from: LearnsFrom = "advantages"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        config = self.config
        self.policy: Policy = policy_for(config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.actor: dict[str, Part] = self.policy.make(make, config.actor_network, config.initial_log_std)
        self.before: dict[str, Part] = {name: target(part, every="epochs") for name, part in self.actor.items()}
        self.critic: Part = make(config.critic_network, spaces.observation, outputs=1)
        gaussian = type(self.policy) is Policy and type(spaces.action) is Box
        self.dual: dict[str, Part] = {
            "temperature": make.free(math.log(config.temperature)),
            **{name: make.free(math.log(config.multiplier)) for name in (("mean", "std") if gaussian else ("policy",))},
        }

    def act(self, observation: Tree) -> Any:
        return self.policy(self.actor, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.critic(self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, weight, advantage = self.config, batch.weight, batch.extras["advantage"]
        if config.normalize_advantage:
            advantage = standardise(advantage, weight)
        policy = self.act(batch.observation)
        before = self.policy(self.before, batch.observation, self.normaliser(batch.observation))
        temperature, log_prior = ops.exp(self.dual["temperature"]()), better_half(advantage, weight)
        share = reweighted(advantage, log_prior, temperature)
        some = ops.cast(ops.max(weight) > 0, "float32")  # 0 where no agent of the policy acts
        fit = -some * ops.sum(share * policy.log_prob(batch.sampled_action))
        dual = some * temperature_dual(advantage, log_prior, temperature, config.epsilon)
        found = {"temperature": temperature}
        for name, part in decoupled(policy, before).items():
            divergence, multiplier = before.kl(part), ops.exp(self.dual[name]())
            bound = config.epsilon_std if name == "std" else config.epsilon_mean
            fit = fit + ops.mean(weight * ops.stop_gradient(multiplier) * divergence)
            dual = dual + ops.mean(weight * multiplier_dual(divergence, multiplier, bound))
            found |= dict(zip(METRICS[name], (ops.mean(weight * divergence), multiplier), strict=True))
        error = self.value(batch.observation) - batch.extras["return"]
        return Losses(
            actor=Loss(fit, entropy=ops.mean(weight * policy.entropy())),
            critic=Loss(ops.mean(weight * ops.square(error))),
            dual=Loss(dual, **found),
        )


def better_half(advantage: Any, weight: Any) -> Any:
    """The logarithms of the shares of steps [B] among those of the larger advantages: half of those that have a weight,
    rounded up, and what ties with the last of them; minus infinity for others. Where none has a weight, all are alike.
    """
    counted = weight > 0
    known = ops.where(counted, advantage, NEVER)
    n = int(advantage.shape[0])
    last = n - (ops.sum(ops.cast(counted, "int32")) + 1) // 2
    better = known >= ops.take_last(ops.sort(known), ops.minimum(last, n - 1))
    share = ops.where(better, weight, 0.0)
    share = share / ops.maximum(ops.sum(share), LEAST_SHARE)
    none = ops.max(weight) <= 0
    return ops.where(counted & better | none, ops.log(ops.maximum(share, LEAST_SHARE)), NEVER)
