"""GAIL: generative adversarial imitation learning.

AIRL shares with it a PPO policy with a reward by a discriminator of the expert's steps.

Ho & Ermon 2016, Generative adversarial imitation learning, arXiv:1606.03476, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.ppo import PPO, PPOConfig
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.losses.adversarial import gail_reward, log_odds_reward, log_reward
from etude.losses.distributional import binary_cross_entropy
from etude.multi_agent.policies import stacked, unstacked
from etude.networks import Maker, Part, Spec


@dataclass(frozen=True)
class AdversarialConfig(PPOConfig):
    """Hyperparameters of the discriminator, besides those of PPO, which the policy learns by."""

    rollout_length: int = 128
    minibatch_size: int | None = 256
    epochs: int = 4
    normalize_reward: bool = False
    normalize_observation: bool = True  # by running moments, initialised on the expert's observations
    discriminator_network: Spec | None = None  # networks of the discriminator; None: as the critic's
    discriminator_learning_rate: float | Linear = 3e-4  # learning rate of the discriminator
    discriminator_every: int = 1  # gradient steps of the policy for each one of the discriminator

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "discriminator_learning_rate")
        checks.counts(self, "discriminator_every")
        if self.normalize_reward or self.clip_reward:
            raise ConfigError(
                f"{type(self).__name__}: normalize_reward and clip_reward change the environment's rewards, from which "
                "nothing is learned here. Leave them off."
            )


class Adversarial(PPO):
    """A policy and a discriminator that learn against each other. Write `make_discriminator`, `logits` and `reward`.

    `discriminator` is a network, or a dict of networks, that the loss of this name trains.
    """

    learns_from = "demonstrations"

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        spec = self.config.discriminator_network
        self.discriminator: Any = self.make_discriminator(
            make, self.config.critic_network if spec is None else spec, spaces
        )
        self.trained_every: dict[str, str] = {"discriminator": "discriminator_every"}

    def make_discriminator(self, make: Maker, spec: Spec, spaces: Spaces) -> Any:
        """The networks of the discriminator."""
        raise NotImplementedError

    def logits(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        """Log odds [N] that a step is the expert's and not the policy's. Arguments as of `reward`."""
        raise NotImplementedError

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        losses = super().loss(batch, noise)
        losses["model"].metrics["discriminator_reward"] = ops.mean(batch.reward)
        shown = batch.extras["expert"]  # as many steps as the policy's
        logits = self.logits(**{name: stacked([getattr(batch, name), shown[name]]) for name in shown})
        own, expert = unstacked(logits, 2)
        # Ho & Ermon 2016, equation 17, where D is the probability of the policy's
        error = binary_cross_entropy(expert, ops.ones_like(expert)) + binary_cross_entropy(own, ops.zeros_like(own))
        losses["discriminator"] = Loss(
            ops.mean(0.5 * error),
            expert_accuracy=ops.mean(ops.cast(expert > 0, "float32")),
            policy_accuracy=ops.mean(ops.cast(own < 0, "float32")),
        )
        return losses


REWARDS = {"-log(1-D)": gail_reward, "log D": log_reward, "log D - log(1-D)": log_odds_reward}


@dataclass(frozen=True)
class GAILConfig(AdversarialConfig):
    """Hyperparameters of GAIL, besides those of PPO and of the discriminator D, the probability of the expert."""

    reward_form: Literal["-log(1-D)", "log D", "log D - log(1-D)"] = "-log(1-D)"  # positive; negative; of either sign

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, "reward_form", tuple(REWARDS))


class GAIL(Adversarial):
    """A policy trained against a discriminator of states and actions."""

    def make_discriminator(self, make: Maker, spec: Spec, spaces: Spaces) -> Part:
        return make(spec, (spaces.observation, spaces.action), outputs=1)

    def logits(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return self.discriminator((self.normaliser(observation), action))[:, 0]

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return REWARDS[self.config.reward_form](self.logits(observation, action, next_observation, discount))
