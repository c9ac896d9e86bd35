"""Maximum a posteriori policy optimisation: a policy is fitted to actions reweighted by their values, within bounds on
how far it moves.

Abdolmaleki et al. 2018, Maximum a posteriori policy optimisation, arXiv:1806.06920. Bounds on mean and deviation of
their own: Abdolmaleki et al. 2018, Relative entropy regularized policy iteration,
arXiv:1812.02256, with decoupled updates as in Acme, https://github.com/google-deepmind/acme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.distributions import Categorical, Gaussian
from etude.losses.masks import NEVER
from etude.losses.policy import multiplier_dual, reweighted, temperature_dual
from etude.losses.value import squared, td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target

LOG_STD = (-5.0, 2.0)  # bounds on the policy's log standard deviation
METRICS = {  # of what is bounded: its divergence, and its multiplier
    "mean": ("mean_kl", "mean_multiplier"),
    "std": ("std_kl", "std_multiplier"),
    "policy": ("policy_kl", "policy_multiplier"),
}


@dataclass(frozen=True)
class MPOConfig(OffPolicyConfig):
    """Hyperparameters of MPO, besides those of every off-policy algorithm."""

    network: Spec = Mlp((256, 256))  # actor and critic networks
    batch_size: int = 256
    buffer_size: int = 1_000_000
    max_gradient_norm: float | None = 40.0
    dual_learning_rate: float = 0.01  # of the temperature and the multipliers, which Adam trains as logarithms
    target_update_every: int = 100  # gradient steps between two updates of the target policy and the target critic
    samples: int = 20  # Box actions: actions of the target policy that are reweighted in each state
    epsilon: float = 0.1  # bound on the KL divergence of reweighted actions from the target policy, in nats
    epsilon_mean: float = 0.0025  # bound on that of the policy; Box actions: by its mean alone
    epsilon_std: float = 1e-6  # Box actions: bound on that of the policy by its standard deviation alone
    temperature: float = 1.0  # initial temperature that values are divided by
    multiplier: float = 10.0  # initial Lagrange multiplier of each bound on the policy

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "dual_learning_rate")
        checks.counts(self, "target_update_every", "samples")
        checks.positive(self, "epsilon", "epsilon_mean", "epsilon_std", "temperature", "multiplier")


class MPO(Agent):
    """A stochastic policy, its target, a critic with a target, and dual variables of the bounds.

    In each next observation of a batch the target policy proposes n actions: samples of Box actions, all Discrete ones.
    The target critic's values of them are what is bootstrapped from, and what the actions are reweighted by.
    """

    actions: ClassVar[tuple[type[Any], ...]] = (Box, Discrete)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        config, self.spaces = self.config, spaces
        self.discrete: bool = isinstance(spaces.action, Discrete)
        self.size: int = int(spaces.action.n) if self.discrete else int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        outputs, bounds = (self.size, ("policy",)) if self.discrete else (2 * self.size, ("mean", "std"))
        self.actor: Part = make(config.actor_network, spaces.observation, outputs, gain=0.01)
        self.critic: Part = (
            make(config.critic_network, spaces.observation, self.size)
            if self.discrete
            else make(config.critic_network, (spaces.observation, spaces.action), 1)
        )
        self.actor_target: Part = target(self.actor, every="target_update_every")
        self.critic_target: Part = target(self.critic, every="target_update_every")
        self.dual: dict[str, Part] = {
            "temperature": make.free(math.log(config.temperature)),
            **{name: make.free(math.log(config.multiplier)) for name in bounds},
        }
        if not self.discrete:
            self.noise: dict[str, tuple[int, ...]] = {"action": (config.samples, self.size)}

    def act(self, observation: Tree) -> Gaussian | Categorical:
        return self._policy(self.actor, observation)

    def _policy(self, actor: Part, observation: Tree) -> Gaussian | Categorical:
        x = actor(self.normaliser(observation))
        if self.discrete:
            return Categorical(x, observation[ACTION_MASK] > 0) if self.spaces.masked else Categorical(x)
        return Gaussian(ops.tanh(x[:, : self.size]), ops.clip(x[:, self.size :], *LOG_STD))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, following = self.config, batch.next_observation
        policy, before = self.act(following), self._policy(self.actor_target, following)
        action, log_prior, q = self._proposed(before, following, noise)
        temperature = ops.exp(self.dual["temperature"]())
        share = reweighted(q, log_prior, temperature)
        dual = ops.mean(batch.weight * temperature_dual(q, log_prior, temperature, config.epsilon))
        fit, found = 0.0, {"temperature": temperature}
        for name, part in decoupled(policy, before).items():
            divergence, multiplier = before.kl(part), ops.exp(self.dual[name]())
            bound = config.epsilon_std if name == "std" else config.epsilon_mean
            log_prob = part.log_probabilities() if self.discrete else _with_axis(part).log_prob(action)  # [B, n]
            fit = fit - ops.sum(share * log_prob, -1) + ops.stop_gradient(multiplier) * divergence
            dual = dual + ops.mean(batch.weight * multiplier_dual(divergence, multiplier, bound))
            found |= dict(zip(METRICS[name], (divergence, multiplier), strict=True))
        next_value = ops.sum(ops.exp(log_prior) * q, -1)
        return Losses(
            critic=self._critic_loss(batch, next_value),
            actor=Loss(ops.mean(batch.weight * fit), policy_entropy=policy.entropy()),
            dual=Loss(dual, **found),
        )

    def _critic_loss(self, batch: Batch, next_value: Any) -> Loss:
        """Half the squared error to the expected value of the target policy. next_value: [B]."""
        seen = self.normaliser(batch.observation)
        q = ops.take_last(self.critic(seen), batch.action) if self.discrete else self.critic((seen, batch.action))[:, 0]
        error = td(q, batch.reward, batch.discount, next_value)
        return Loss(ops.mean(batch.weight * squared(error)), td_error=error, q_value=q)

    def _proposed(self, before: Any, observation: Tree, noise: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Actions of the target policy (Box: [B, n, A]; Discrete: none, as they are all), the logarithms of their
        shares before they are reweighted, and their values by the target critic, [B, n] each."""
        seen = self.normaliser(observation)
        if self.discrete:
            log_prior = before.log_probabilities()
            log_prior = ops.where(before.allowed, log_prior, NEVER) if before.masked else log_prior
            return None, log_prior, self.critic_target(seen)
        action = _with_axis(before).sample(noise["action"])
        count = action.shape[1]
        repeated = trees.map(lambda x: ops.concatenate([x] * count, 0), seen)
        flat = ops.reshape(ops.swapaxes(ops.clip(action, -1.0, 1.0), 0, 1), (-1, self.size))
        q = ops.swapaxes(ops.reshape(self.critic_target((repeated, flat)), (count, -1)), 0, 1)
        return action, ops.zeros_like(q) - math.log(count), q


def _with_axis(policy: Gaussian) -> Gaussian:
    """The same policy with an axis for several actions in each state."""
    return Gaussian(ops.expand_dims(policy.mean, 1), ops.expand_dims(policy.log_std, 1))


def decoupled(policy: Any, before: Any) -> dict[str, Any]:
    """The policy, by what is bounded of its divergence from the one before; of a `Gaussian` mean and deviation apart,
    each as a policy that has the other from before."""
    if not isinstance(policy, Gaussian):
        return {"policy": policy}
    return {"mean": Gaussian(policy.mean, before.log_std), "std": Gaussian(before.mean, policy.log_std)}
