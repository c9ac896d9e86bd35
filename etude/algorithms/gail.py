"""GAIL: generative adversarial imitation learning.

Ho & Ermon 2016, Generative adversarial imitation learning, arXiv:1606.03476, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from etude.algorithms.adversarial import Adversarial, AdversarialConfig
from etude.base import checks
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.losses.adversarial import gail_reward, log_odds_reward, log_reward
from etude.networks import Maker, Spec
from etude.networks.network import Part

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
