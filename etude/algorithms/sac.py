"""Soft actor-critic with twin critics, or a larger ensemble, and an entropy temperature that is given or learned.

Haarnoja et al. 2018, Soft actor-critic algorithms and applications, arXiv:1812.05905, equations 5 to 9 and 18.
Ensembles: Chen et al. 2021, Randomized ensembled double Q-learning (REDQ), arXiv:2101.05982, algorithm 1.
SAC-N, on recorded data with N critics, whose minimum is low where the data says nothing: An, Moon, Kim & Song 2021,
Uncertainty-based offline reinforcement learning with diversified Q-ensemble, arXiv:2110.01548, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.critics import CriticEnsemble, critic_ensemble_loss
from etude.algorithms.policies import StateDependentPolicy
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig, SampledConfig, StateDependentConfig
from etude.losses.distributions import StateDependentGaussian, TanhGaussian
from etude.losses.soft import soft_actor, soft_target, soft_temperature
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.networks.random_shift import RandomShift


def check_temperature(config: Any) -> None:
    """Raise ConfigError for a temperature below 0, or of 0 where its log is learned."""
    (checks.positive if config.learn_temperature else checks.not_negative)(config, "temperature")


class LearnedTemperature(Part):
    """Log alpha, a trained number that brings the policy's entropy to a target.

    initial: alpha before the first gradient step.
    """

    def __init__(self, initial: float):
        self.variables: dict[str, Any] = {"value": np.asarray(np.log(initial), np.float32)}

    def alpha(self, config: Any) -> Any:
        """alpha, a scalar."""
        return ops.exp(self.variables["value"])

    def losses(self, log_prob: Any, weight: Any, target_entropy: Any) -> Losses:
        """Equation 18, as the loss `temperature`. log_prob: [B], of the policy's actions; weight: [B];
        target_entropy: a number, or [B]."""
        log_alpha = self.variables["value"]
        loss = ops.mean(weight * soft_temperature(log_alpha, log_prob, target_entropy))
        return Losses(temperature=Loss(loss, alpha=ops.exp(log_alpha)))


class FixedTemperature(Part):
    """alpha is the config's `temperature`, which may change during a run; there is nothing to train."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def alpha(self, config: Any) -> Any:
        """alpha, a scalar."""
        return config.temperature

    def losses(self, log_prob: Any, weight: Any, target_entropy: Any) -> Losses:
        """None."""
        return Losses()


def entropy_temperature(config: Any) -> LearnedTemperature | FixedTemperature:
    """What a config with `temperature` and `learn_temperature` asks for."""
    return LearnedTemperature(config.temperature) if config.learn_temperature else FixedTemperature()


LOG_STD = (-20.0, 2.0)  # bounds on the policy's log standard deviation


@dataclass(frozen=True)
class SACConfig(SampledConfig, StateDependentConfig):
    """Hyperparameters of SAC, besides those of every off-policy algorithm."""

    network: Spec = Mlp((256, 256))  # actor and critic networks
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step
    temperature: float = 1.0  # entropy temperature alpha (its initial value if learned)
    learn_temperature: bool = True  # learn alpha so that the policy's entropy approaches target_entropy
    target_entropy: float | None = None  # target entropy in nats; None: minus the action dimension
    n_critics: int = 2  # critics, each with networks and targets of its own
    n_target_critics: int | None = None  # bootstrap from the minimum of so many random critics (REDQ); None: of all
    policy_delay: int = 1  # gradient steps of the critics for each one of the actor and the temperature
    random_shift: int = 0  # shift images randomly by up to so many pixels in every batch (DrQ); 0: off

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        check_temperature(self)
        checks.not_negative(self, "random_shift")
        checks.counts(self, "n_critics", "policy_delay")
        if self.n_target_critics is not None and not 1 <= self.n_target_critics <= self.n_critics:
            raise ConfigError(
                f"{type(self).__name__}: n_target_critics = {self.n_target_critics} of n_critics = {self.n_critics}; "
                "expected from 1 to all of them, or None."
            )
        if self.gsde and self.exploration_correlation:
            raise ConfigError(
                f"{type(self).__name__}: gsde = True and exploration_correlation = {self.exploration_correlation}; the "
                "noise of gSDE is correlated already. Leave one of them off."
            )


class SAC(Agent):
    """A stochastic policy that maximises return and entropy, and twin critics, or a larger ensemble."""

    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True
    has_targets: ClassVar[bool] = True  # whether next values are those of target networks
    entropy_per_action: ClassVar[float] = -1.0  # target entropy for each action dimension, where none is given

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.size: int = int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.random_shift: RandomShift = make.random_shift(spaces.observation, self.config.random_shift)
        gsde = self.config.gsde_features > 0
        self.gsde: StateDependentPolicy | None = (
            StateDependentPolicy(spaces, TanhGaussian, learn_features=True) if gsde else None
        )
        config = self.config
        self.actor: Any = (
            make(config.actor_network, spaces.observation, outputs=2 * self.size)
            if self.gsde is None
            else self.gsde.make(make, config.actor_network, gain=1.0)
        )
        self.critic: CriticEnsemble = self.make_critic(make, spaces)
        if self.has_targets:
            self.critic_target: CriticEnsemble = target(self.critic, tau="tau")
        self.temperature: LearnedTemperature | FixedTemperature = entropy_temperature(self.config)
        self.noise: dict[str, tuple[int, ...]] = {
            "action": (self.size,),
            "next_action": (self.size,),
            **self.random_shift.noise,
        }
        if config.n_target_critics is not None:
            self.batch_noise["subset"] = (config.n_critics,)
        if units := self.critic.dropout:
            self.noise["dropout_of_examples"] = ()
            self.batch_noise |= {"dropout": (units,), "dropout_of_target": (units,)}
        if config.policy_delay > 1:
            delayed = ("actor", "temperature") if config.learn_temperature else ("actor",)
            self.trained_every: dict[str, str] = dict.fromkeys(delayed, "policy_delay")

    def make_critic(self, make: Maker, spaces: Spaces) -> CriticEnsemble:
        """The critics that are trained."""
        return CriticEnsemble.make(make, self.config.critic_network, spaces, self.config.n_critics)

    def act(self, observation: Tree) -> TanhGaussian | StateDependentGaussian:
        seen = self.normaliser(observation)
        if self.gsde is not None:
            return self.gsde(self.actor, observation, seen)
        x = self.actor(seen)
        return TanhGaussian(x[:, : self.size], ops.clip(x[:, self.size :], *LOG_STD))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        batch = self.random_shift(batch, noise)
        if "dropout" in noise:
            examples = noise["dropout_of_examples"]
            self.critic = self.critic.dropping(examples, noise["dropout"])
            self.critic_target = self.critic_target.dropping(examples, noise["dropout_of_target"])
        action, log_prob = self.act(batch.observation).sample_with_log_prob(noise["action"])
        return Losses(
            critic=self.critic_loss(batch, noise["next_action"], noise.get("subset")),
            actor=self.actor_loss(batch, action, log_prob),
            **self.temperature_loss(batch, log_prob),
        )

    def critic_loss(self, batch: Batch, noise: Any, subset: Any = None) -> Loss:
        """Equations 5 and 6, with the smallest value of the target critics, or of a random subset of them.

        subset: [E] noise that chooses `n_target_critics` of the critics.
        """
        following = self.normaliser(batch.next_observation)
        next_action, next_log_prob = self.act(batch.next_observation).sample_with_log_prob(noise)
        size = self.config.n_target_critics
        if size is None:
            next_q = self.critic_target.minimum(following, next_action)
        else:
            next_q = self.critic_target.minimum_of_subset(following, next_action, subset, size)
        alpha = self.temperature.alpha(self.config)
        target_q = soft_target(batch.reward, batch.discount, next_q, next_log_prob, alpha)
        q = self.critic(self.normaliser(batch.observation), batch.action)
        return critic_ensemble_loss(ops.expand_dims(target_q, 0) - q, batch.weight, q)

    def actor_loss(self, batch: Batch, action: Any, log_prob: Any) -> Loss:
        """Equation 9. action: [B, A] of the policy now, with its log_prob [B]."""
        q = self.actor_value(self.normaliser(batch.observation), action)
        loss = soft_actor(q, log_prob, self.temperature.alpha(self.config))
        return Loss(ops.mean(batch.weight * loss), policy_entropy=-log_prob)

    def actor_value(self, observation: Tree, action: Any) -> Any:
        """What the actor maximises, [B]: the smallest value of the critics; of REDQ, their mean."""
        evaluate = self.critic.minimum if self.config.n_target_critics is None else self.critic.mean
        return evaluate(observation, action)

    def temperature_loss(self, batch: Batch, log_prob: Any) -> Losses:
        """Equation 18; none where alpha is fixed."""
        given = self.config.target_entropy
        target_entropy = self.entropy_per_action * self.size if given is None else given
        return self.temperature.losses(log_prob, batch.weight, target_entropy)


@dataclass(frozen=True)
class SACNConfig(OfflineConfig):
    """Hyperparameters of SAC-N, besides those of every offline algorithm."""

    network: Spec = Mlp((256, 256, 256))  # actor and critic networks
    n_critics: int = 10  # the N: the narrower the data, the more (the paper: 10 to 500)
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step
    temperature: float = 1.0  # entropy temperature alpha (its initial value if learned)
    learn_temperature: bool = True  # learn alpha so that the policy's entropy approaches target_entropy
    target_entropy: float | None = None  # target entropy in nats; None: minus the action dimension
    random_shift: int = 0  # shift images randomly by up to so many pixels in every batch (DrQ); 0: off
    n_target_critics: ClassVar[None] = None  # the target is the minimum of all critics
    policy_delay: ClassVar[int] = 1
    gsde_features: ClassVar[int] = 0  # nothing is explored

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        check_temperature(self)
        checks.not_negative(self, "random_shift")
        checks.counts(self, "n_critics")
