"""Proximal policy optimisation with the clipped objective or an adaptive KL penalty.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 to 9; advantages by
Schulman et al. 2016, arXiv:1506.02438. Details as in Huang et al. 2022, "The 37 implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from etude.agent import Agent, LearnsFrom, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.algorithms.proximal import (
    ClippedObjective,
    NormalisedValues,
    PenaltyObjective,
    RawValues,
    importance_ratio,
    ppo_loss,
    value_error,
)
from etude.base import checks
from etude.base.data import Batch
from etude.base.optimizers import Adam, Optimizer
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig, StateDependentConfig
from etude.networks import Maker, Mlp, Part, Spec
from etude.networks.network import Normaliser
from etude.protocols import Weights


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig, StateDependentConfig, StochasticPolicyConfig):
    """Hyperparameters of PPO, besides those of every on-policy algorithm."""

    network: Spec = Mlp((64, 64), "tanh", "orthogonal")  # actor and critic networks
    rollout_length: int = 256
    minibatch_size: int | None = 64
    epochs: int = 10
    normalize_observation: bool = True
    normalize_reward: bool = True
    max_gradient_norm: float | None = 0.5
    optimizer: Optimizer = Adam(epsilon=1e-5)
    objective: Literal["clip", "penalty"] = "clip"  # clipped surrogate objective, or adaptive KL penalty
    clip_range: float | Linear = 0.2  # clip range of the importance ratio
    kl_target: float = 0.01  # penalty: target KL divergence in nats
    kl_coefficient: float = 1.0  # penalty: initial coefficient
    entropy_coefficient: float | Linear = 0.0  # entropy coefficient of the loss
    value_coefficient: float = 0.5  # value function coefficient of the loss
    value_clip_range: float | None = None  # clip range of the value function; None: not clipped
    normalize_value: bool = False  # normalise the critic's targets by running moments of returns
    normalize_advantage: bool = True  # standardise advantages in every minibatch
    initial_log_std: float = 0.0  # Box actions: initial log standard deviation, for actions in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, "objective", ("clip", "penalty"))
        checks.not_negative(self, "clip_range", "value_coefficient", "kl_coefficient")
        checks.positive(self, "kl_target")
        if self.value_clip_range is not None:
            checks.not_negative(self, "value_clip_range")


class PPO(Agent):
    """A stochastic policy and a critic of states, trained for several epochs on each rollout."""

    learns_from: LearnsFrom = "advantages"
    actions: ClassVar[tuple[type[Any], ...]] = Policy.actions

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.policy: Policy = policy_for(self.config, spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = {
            **self.policy.make(make, self.config.actor_network, self.config.initial_log_std),
            "critic": make(self.config.critic_network, spaces.observation, outputs=1),
        }
        penalised = self.config.objective == "penalty"
        self.objective: PenaltyObjective | ClippedObjective = (
            PenaltyObjective(self.config.kl_coefficient) if penalised else ClippedObjective()
        )
        self.value_normaliser: NormalisedValues | RawValues = (
            NormalisedValues() if self.config.normalize_value else RawValues()
        )

    def act(self, observation: Tree) -> Any:
        return self.policy(self.model, observation, self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        return self.value_normaliser.value(self.model["critic"](self.normaliser(observation))[:, 0])

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config = self.config
        found = importance_ratio(self.act(batch.observation), batch, config.normalize_advantage)
        surrogate = self.objective.surrogate(config, found)
        error = value_error(self.value(batch.observation), batch, config.value_clip_range, self.value_normaliser.scale)
        loss = ppo_loss(config, batch, found, surrogate, error)
        loss.metrics |= self.objective.metrics(config, found, batch) | self.value_normaliser.metrics(batch)
        return Losses(model=loss)

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """The penalty's coefficient and the moments of returns."""
        changed: Weights = {}
        for name, part in (("objective", self.objective), ("value_normaliser", self.value_normaliser)):
            if part.variables:
                weights = read([f"{name}.{variable}" for variable in part.variables])
                values = {weight.removeprefix(f"{name}."): value for weight, value in weights.items()}
                adapted = part.adapted(self.config, values, metrics)
                changed |= {f"{name}.{variable}": np.asarray(x, np.float32) for variable, x in adapted.items()}
        return changed
