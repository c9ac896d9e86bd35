"""What the kinds of PPO have in common: the policy beside the one that acted, and the sum of the losses."""

from __future__ import annotations

from typing import Any, NamedTuple

from etude import ops
from etude.agent import Loss
from etude.base.data import Batch
from etude.losses.policy import standardise, value_clip


class Moved(NamedTuple):
    """How far a policy is from the one that acted; arrays of the shape of the batch's weights."""

    policy: Any  # the distribution now
    advantage: Any
    log_ratio: Any
    ratio: Any
    divergence: Any  # its mean, and that of its gradient, are those of KL(acted || now)


def moved(policy: Any, batch: Batch, normalize_advantage: bool) -> Moved:
    """normalize_advantage: to mean 0 and deviation 1 over the batch."""
    advantage = batch.extras["advantage"]
    if normalize_advantage:
        advantage = standardise(advantage, batch.weight)
    log_ratio = policy.log_prob(batch.action) - batch.extras["log_prob"]
    ratio = ops.exp(log_ratio)
    return Moved(policy, advantage, log_ratio, ratio, ratio - 1.0 - log_ratio)


def clip_fraction(now: Moved, batch: Batch, clip: Any) -> Any:
    """The share of steps whose ratio is outside of 1 - clip to 1 + clip."""
    return ops.mean(batch.weight * ops.cast(ops.abs(now.ratio - 1.0) > clip, "float32"))


def value_error(value: Any, batch: Batch, bound: float | None, unit: Any = 1.0) -> Any:
    """The squared error of values, in units such as a deviation of returns. bound: on how far they move from those of
    the rollout (`value_clip`); None: no bound."""
    value, target = value / unit, batch.extras["return"] / unit
    if bound is None:
        return ops.square(value - target)
    return 2.0 * value_clip(value, batch.extras["value"] / unit, target, bound)


def joined(config: Any, batch: Batch, now: Moved, surrogate: Any, value_error: Any) -> Loss:
    """The loss of policy, critic and entropy, with what is told of each. Schulman et al. 2017, arXiv:1707.06347,
    equation 9.

    config: has `value_coefficient` and `entropy_coefficient`. surrogate, value_error: to be minimised, shaped as
        the weights of the batch.
    """
    policy_loss = ops.mean(batch.weight * surrogate)
    value_loss = ops.mean(batch.weight * value_error)
    entropy = ops.mean(batch.weight * now.policy.entropy())
    return Loss(
        policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy,
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        approx_kl=ops.mean(batch.weight * now.divergence),
    )
