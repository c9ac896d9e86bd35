"""Proximal policy optimisation with a clipped ratio, or with an adaptive penalty.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 to 9; advantages by
Schulman et al. 2016, arXiv:1506.02438. Details as in Huang et al. 2022, "The 37 implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from etude import ops
from etude.agent import Agent, Losses
from etude.algorithms.policies import Policy
from etude.algorithms.proximal import clip_fraction, joined, moved, value_error
from etude.base import checks
from etude.base.data import Batch
from etude.base.optimizers import Adam
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig
from etude.losses.policy import next_kl_coefficient, ppo_clip, ppo_penalty
from etude.networks import Maker, Mlp, Spec
from etude.protocols import Weights

REMEMBERED = 100  # learning phases that the moments of returns are averaged over


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # of the actor, and of the critic: two networks of this kind
    rollout_length: int = 256
    minibatch_size: int | None = 64
    epochs: int = 10
    normalize_observation: bool = True
    normalize_reward: bool = True
    max_gradient_norm: float | None = 0.5
    optimizer: Adam = Adam(epsilon=1e-5)
    objective: Literal["clip", "penalty"] = "clip"  # what keeps the policy near the one that acted
    clip_range: float | Linear = 0.2  # bound on the ratio of probabilities: 1 - clip to 1 + clip
    kl_target: float = 0.01  # the divergence, in nats, that the penalty adapts itself to
    kl_coefficient: float = 1.0  # of the penalty, where it starts
    entropy_coefficient: float | Linear = 0.0  # what entropy is worth in the loss
    value_coefficient: float = 0.5  # weight of the critic's loss
    value_clip_range: float | None = None  # bound on how far values move from those of the rollout; None: no bound
    normalize_value: bool = False  # the critic learns returns by their running mean and deviation
    normalize_advantage: bool = True  # to mean 0 and deviation 1 in every minibatch
    initial_log_std: float = 0.0  # for Box actions: where it starts, in the range [-1, 1] that the agent sees

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, "objective", ("clip", "penalty"))
        checks.not_negative(self, "clip_range", "value_coefficient", "kl_coefficient")
        checks.positive(self, "kl_target")
        if self.value_clip_range is not None:
            checks.not_negative(self, "value_clip_range")


class PPO(Agent):
    """A policy that is moved, at most by a clipped ratio, towards the actions that were better than expected."""

    learns_from = "advantages"
    actions = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy = Policy(spaces)
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model = {
            **self.policy.make(make, self.config.actor_network, self.config.initial_log_std),
            "critic": make(self.config.critic_network, spaces.observation, outputs=1),
        }
        if self.config.objective == "penalty":
            self.penalty = make.free(self.config.kl_coefficient, trained=False)
        if self.config.normalize_value:
            self.returns = make.free(np.array([0.0, 1.0, 0.0]), trained=False)  # mean, deviation, phases so far

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        value = self.model["critic"](self.normaliser(observation))[:, 0]
        return value * self.returns()[1] + self.returns()[0] if self.config.normalize_value else value

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config = self.config
        now = moved(self.act(batch.observation), batch, config.normalize_advantage)
        if config.objective == "clip":
            surrogate = ppo_clip(now.log_ratio, now.advantage, config.clip_range)
        else:
            surrogate = ppo_penalty(now.log_ratio, now.advantage, now.divergence, self.penalty())
        unit = self.returns()[1] if config.normalize_value else 1.0
        error = value_error(self.value(batch.observation), batch, config.value_clip_range, unit)
        loss = joined(config, batch, now, surrogate, error)
        if config.objective == "clip":
            loss.metrics["clip_fraction"] = clip_fraction(now, batch, config.clip_range)
        else:
            loss.metrics["kl_coefficient"] = self.penalty()
        if config.normalize_value:
            loss.metrics["return_mean"] = ops.mean(batch.extras["return"])
            loss.metrics["return_deviation"] = ops.std(batch.extras["return"])
        return Losses(model=loss)

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """The penalty's coefficient by the rule of section 4, and the moments of returns."""
        changed = {}
        if self.config.objective == "penalty":
            before = float(read(["penalty.value"])["penalty.value"])
            changed["penalty.value"] = next_kl_coefficient(before, metrics["approx_kl"], self.config.kl_target)
        if self.config.normalize_value:
            mean, deviation, phases = read(["returns.value"])["returns.value"].tolist()
            rate = 1.0 / min(phases + 1.0, REMEMBERED)
            square = mean**2 + deviation**2
            square += rate * (metrics["return_mean"] ** 2 + metrics["return_deviation"] ** 2 - square)
            mean += rate * (metrics["return_mean"] - mean)
            changed["returns.value"] = np.array([mean, max(square - mean**2, 1e-8) ** 0.5, phases + 1.0])
        return {name: np.asarray(value, np.float32) for name, value in changed.items()}
