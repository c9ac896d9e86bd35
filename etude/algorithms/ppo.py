"""Proximal policy optimisation with the clipped objective or an adaptive KL penalty.

Its kinds share importance ratios, the objectives, normalised values and the joint loss.

Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347, equations 7 to 9; advantages by
Schulman et al. 2016, arXiv:1506.02438. Details as in Huang et al. 2022, "The 37 implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from etude import ops
from etude.agent import Agent, LearnsFrom, Loss, Losses
from etude.algorithms.distributions import StochasticPolicyConfig, policy_for
from etude.algorithms.policies import Policy
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.config import OnPolicyConfig, StateDependentConfig
from etude.losses.policy import next_kl_coefficient, ppo_clip, ppo_penalty, standardise, value_clip
from etude.networks import Maker, Mlp, Normaliser, Part, Spec
from etude.optimizers import Adam, Optimizer
from etude.protocols import Weights

REMEMBERED = 100  # learning phases that the moments of returns are averaged over


class ImportanceRatio(NamedTuple):
    """The present policy against the one that acted; arrays of the shape of the batch's weights."""

    policy: Any  # the present distribution
    advantage: Any
    log_ratio: Any  # log probability of the actions now minus when they were taken
    ratio: Any
    divergence: Any  # an estimate of KL(acted || present), unbiased as is its gradient


def importance_ratio(policy: Any, batch: Batch, normalize_advantage: bool) -> ImportanceRatio:
    """normalize_advantage: to mean 0 and standard deviation 1 over the batch."""
    advantage = batch.extras["advantage"]
    if normalize_advantage:
        advantage = standardise(advantage, batch.weight)
    log_ratio = policy.log_prob(batch.sampled_action) - batch.extras["log_prob"]
    ratio = ops.exp(log_ratio)
    return ImportanceRatio(policy, advantage, log_ratio, ratio, ratio - 1.0 - log_ratio)


class ClippedObjective(Part):
    """The clipped surrogate objective, equation 7. It has no variables."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def surrogate(self, config: Any, found: ImportanceRatio) -> Any:
        """The loss of each step. config: has `clip_range`."""
        return ppo_clip(found.log_ratio, found.advantage, config.clip_range)

    def metrics(self, config: Any, found: ImportanceRatio, batch: Batch) -> dict[str, Any]:
        """The share of steps whose ratio is outside 1 - clip_range to 1 + clip_range."""
        outside = ops.cast(ops.abs(found.ratio - 1.0) > config.clip_range, "float32")
        return {"clip_fraction": ops.mean(batch.weight * outside)}

    def adapted(self, config: Any, values: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Nothing adapts."""
        return {}


class PenaltyObjective(Part):
    """The surrogate objective with an adaptive KL penalty, equation 8 and section 4.

    coefficient: of the penalty before the first learning phase.
    """

    def __init__(self, coefficient: float):
        self.variables: dict[str, Any] = {"kl_coefficient": np.asarray(coefficient, np.float32)}
        self.frozen: frozenset[str] = frozenset(self.variables)

    def surrogate(self, config: Any, found: ImportanceRatio) -> Any:
        """The loss of each step."""
        return ppo_penalty(found.log_ratio, found.advantage, found.divergence, self.variables["kl_coefficient"])

    def metrics(self, config: Any, found: ImportanceRatio, batch: Batch) -> dict[str, Any]:
        """The coefficient."""
        return {"kl_coefficient": self.variables["kl_coefficient"]}

    def adapted(self, config: Any, values: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """The next coefficient, by the mean divergence of a learning phase over the minibatches in which an agent of
        the policy acts; the same without any. config: has `kl_target`."""
        if "approx_kl" not in metrics:
            return {}
        before = float(values["kl_coefficient"])
        return {"kl_coefficient": next_kl_coefficient(before, metrics["approx_kl"], config.kl_target)}


class RawValues(Part):
    """The critic predicts returns as they are. It has no variables."""

    scale: float = 1.0

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def value(self, output: Any) -> Any:
        """The value for an output of the critic."""
        return output

    def metrics(self, batch: Batch) -> dict[str, Any]:
        """Nothing is reported."""
        return {}

    def adapted(self, config: Any, values: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Nothing adapts."""
        return {}


class NormalisedValues(Part):
    """The critic predicts returns in units of their running mean and standard deviation.

    moments: mean, standard deviation, and the number of learning phases so far.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {"moments": np.array([0.0, 1.0, 0.0], np.float32)}
        self.frozen: frozenset[str] = frozenset(self.variables)

    @property
    def scale(self) -> Any:
        """The standard deviation of returns."""
        return self.variables["moments"][1]

    def value(self, output: Any) -> Any:
        """The value for an output of the critic."""
        return output * self.scale + self.variables["moments"][0]

    def metrics(self, batch: Batch) -> dict[str, Any]:
        """Mean of the batch's returns, and of their squared deviations from the running mean: unlike deviations, these
        can be averaged over minibatches."""
        found, weight = batch.extras["return"], batch.weight
        squared = ops.square(found - self.variables["moments"][0])
        return {"return_mean": ops.mean(weight * found), "return_squared_deviation": ops.mean(weight * squared)}

    def adapted(self, config: Any, values: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """The moments after a learning phase, from the minibatches in which an agent of the policy acts; the same
        without any."""
        if "return_mean" not in metrics:
            return {}
        returned, squared = metrics["return_mean"], metrics["return_squared_deviation"]
        mean, deviation, phases = values["moments"].tolist()
        rate = 1.0 / min(phases + 1.0, REMEMBERED)
        shift = rate * (returned - mean)
        variance = deviation**2 + rate * (squared - deviation**2) - shift**2
        return {"moments": np.array([mean + shift, max(variance, 1e-8) ** 0.5, phases + 1.0])}


def value_error(value: Any, batch: Batch, clip_range: float | None, scale: Any = 1.0) -> Any:
    """The squared error of values to returns, both divided by `scale`. clip_range: of the change of values since the
    rollout (`value_clip`); None: not clipped."""
    value, target = value / scale, batch.extras["return"] / scale
    if clip_range is None:
        return ops.square(value - target)
    return 2.0 * value_clip(value, batch.extras["value"] / scale, target, clip_range)


def ppo_loss(config: Any, batch: Batch, found: ImportanceRatio, surrogate: Any, value_error: Any) -> Loss:
    """Equation 9: the losses of policy and critic, and the entropy bonus.

    config: has `value_coefficient` and `entropy_coefficient`. surrogate, value_error: of each step, shaped as the
        weights of the batch.
    """
    policy_loss = ops.mean(batch.weight * surrogate)
    value_loss = ops.mean(batch.weight * value_error)
    entropy = ops.mean(batch.weight * found.policy.entropy())
    return Loss(
        policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy,
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        approx_kl=ops.mean(batch.weight * found.divergence),
    )


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
