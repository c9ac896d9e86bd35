"""AIRL: adversarial inverse reinforcement learning.

Fu et al. 2018, Learning robust rewards with adversarial inverse reinforcement learning, arXiv:1710.11248, algorithm 1
and section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.algorithms.gail import Adversarial, AdversarialConfig
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.losses.adversarial import airl_logits, log_odds_reward
from etude.multi_agent.policies import stacked, unstacked
from etude.networks import Maker, Part, Spec


@dataclass(frozen=True)
class AIRLConfig(AdversarialConfig):
    """Hyperparameters of AIRL, besides those of PPO and of the discriminator."""

    state_only: bool = False  # a learned reward of the state alone, which transfers to other dynamics


class AIRL(Adversarial):
    """A policy, and a reward that explains the expert: D = exp(f) / (exp(f) + probability of the action)."""

    def make_discriminator(self, make: Maker, spec: Spec, spaces: Spaces) -> dict[str, Part]:
        judged = spaces.observation if self.config.state_only else (spaces.observation, spaces.action)
        return {"reward": make(spec, judged, outputs=1), "potential": make(spec, spaces.observation, outputs=1)}

    def learned_reward(self, observation: Tree, action: Any) -> Any:
        """The learned reward g, [N]. With `state_only` the action is ignored."""
        seen = self.normaliser(observation)
        judged = seen if self.config.state_only else (seen, action)
        return self.discriminator["reward"](judged)[:, 0]

    def logits(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        reward, log_prob = self.learned_reward(observation, action), self.act(observation).log_prob(action)
        ends = self.normaliser(stacked([observation, next_observation]))
        potential, next_potential = unstacked(self.discriminator["potential"](ends)[:, 0], 2)
        return airl_logits(reward, discount, potential, next_potential, log_prob)

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return log_odds_reward(self.logits(observation, action, next_observation, discount))
