"""Proximal policy optimisation with a clipped ratio.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 and 9; advantages by
Schulman et al. 2016, arXiv:1506.02438. Details as in Huang et al. 2022, "The 37 implementation details of PPO".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import checks, ops
from etude.agent import Agent, Loss, Losses
from etude.config import OnPolicyConfig
from etude.data import Batch
from etude.losses.distributions import Categorical, Gaussian, MultiCategorical
from etude.losses.policy import ppo_clip, standardise
from etude.networks import Maker, Mlp, Spec
from etude.optimizers import Adam
from etude.schedules import Linear
from etude.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete, Spaces
from etude.trees import Tree

NEVER = -1e9  # the logit of an action that the mask forbids


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # of the actor, and of the critic: two networks of this kind
    epochs: int = 4
    max_gradient_norm: float | None = 0.5
    optimizer: Adam = Adam(epsilon=1e-5)
    clip: float | Linear = 0.2  # bound on the ratio of probabilities: 1 - clip to 1 + clip
    entropy: float | Linear = 0.0  # what entropy is worth in the loss
    value_cost: float = 0.5  # weight of the critic's loss
    normalize_advantage: bool = True  # to mean 0 and deviation 1 in every minibatch
    initial_log_std: float = 0.0  # for Box actions: where it starts, in the range [-1, 1] that the agent sees

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "clip", "value_cost")


class PPO(Agent):
    """A policy that is moved, at most by a clipped ratio, towards the actions that were better than expected."""

    learns_from = "advantages"
    actions = (Discrete, MultiDiscrete, Box)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.spaces = spaces
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model = {
            "actor": make(self.config.network, spaces.observation, outputs=_outputs(spaces), gain=0.01),
            "critic": make(self.config.network, spaces.observation, outputs=1),
        }
        if isinstance(spaces.action, Box):
            self.model["log_std"] = make.free(np.full(_outputs(spaces), self.config.initial_log_std))

    def act(self, observation: Tree) -> Any:
        x = self.model["actor"](self.normaliser(observation))
        if isinstance(self.spaces.action, Box):
            return Gaussian(x, x * 0.0 + self.model["log_std"]())
        if self.spaces.masked:
            x = ops.where(observation[ACTION_MASK] > 0, x, NEVER)
        if isinstance(self.spaces.action, Discrete):
            return Categorical(x)
        ends = np.cumsum(self.spaces.action.nvec).tolist()
        return MultiCategorical(tuple(x[:, a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)))

    def value(self, observation: Tree) -> Any:
        return self.model["critic"](self.normaliser(observation))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, policy = self.config, self.act(batch.observation)
        advantage = batch.extras["advantage"]
        if config.normalize_advantage:
            advantage = standardise(advantage, batch.weight)
        log_ratio = policy.log_prob(batch.action) - batch.extras["log_prob"]
        policy_loss = ops.mean(batch.weight * ppo_clip(log_ratio, advantage, config.clip))
        value_loss = ops.mean(batch.weight * ops.square(self.value(batch.observation) - batch.extras["return"]))
        entropy = ops.mean(batch.weight * policy.entropy())
        ratio = ops.exp(log_ratio)
        return Losses(
            model=Loss(
                policy_loss + config.value_cost * value_loss - config.entropy * entropy,
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy=entropy,
                approx_kl=ops.mean(ratio - 1.0 - log_ratio),
                clip_fraction=ops.mean(ops.cast(ops.abs(ratio - 1.0) > config.clip, "float32")),
            )
        )


def _outputs(spaces: Spaces) -> int:
    if isinstance(spaces.action, Discrete):
        return int(spaces.action.n)
    if isinstance(spaces.action, MultiDiscrete):
        return int(spaces.action.nvec.sum())
    return int(np.prod(spaces.action.shape))
