"""Losses of policies. Advantages and log probabilities of the past carry no gradient. B is the batch."""

from __future__ import annotations

import math

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array
from etude.ops.replicas import replica_count


@shapes(log_prob="*B", advantage="*B")
def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """`-log_prob * advantage`, all [B]. Williams 1992, doi:10.1007/BF00992696."""
    return -log_prob * ops.stop_gradient(advantage)


@shapes(log_ratio="*B", advantage="*B", clip="?*B")
def ppo_clip(log_ratio: Array, advantage: Array, clip: Array | float) -> Array:
    """`-min(ratio * advantage, clip(ratio, 1 - clip, 1 + clip) * advantage)`, all [B].

    Schulman et al. 2017, arXiv:1707.06347, equation 7. log_ratio: log_prob now minus that when the action was taken.
    """
    ratio, advantage = ops.exp(log_ratio), ops.stop_gradient(advantage)
    return -ops.minimum(ratio * advantage, ops.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


@shapes(log_ratio="*B", advantage="*B", kl="*B", coefficient="?*B")
def ppo_penalty(log_ratio: Array, advantage: Array, kl: Array, coefficient: Array | float) -> Array:
    """`coefficient * kl - ratio * advantage`, all [B]. Schulman et al. 2017, arXiv:1707.06347, equation 8.

    kl: of the policy that acted from the one now, with its gradient. coefficient: see `next_kl_coefficient`.
    """
    return coefficient * kl - ops.exp(log_ratio) * ops.stop_gradient(advantage)


def next_kl_coefficient(coefficient: float, kl: float, target: float) -> float:
    """Twice the coefficient where the mean divergence came out above 1.5 times its target, half of it where below the
    target over 1.5; Python numbers. Schulman et al. 2017, arXiv:1707.06347, section 4."""
    if kl > 1.5 * target:
        return 2.0 * coefficient
    return 0.5 * coefficient if kl < target / 1.5 else coefficient


@shapes(q="B")
def deterministic_policy_gradient(q: Array) -> Array:
    """`-q`, [B], of the policy's own action: the gradient reaches the policy through it. Silver et al. 2014,
    Deterministic policy gradient algorithms (ICML), equation 9; Lillicrap et al. 2016, arXiv:1509.02971."""
    return -q


@shapes(action="B A", noise="B A", deviation="", reach="")
def smoothed(action: Array, noise: Array, deviation: Array | float, reach: Array | float) -> Array:
    """The target policy's action with a little noise, in [-1, 1]: `action + clip(deviation * noise, -reach, reach)`.

    Fujimoto et al. 2018, arXiv:1802.09477, section 5.3. action: [B, A]; noise: [B, A] standard normal -> [B, A].
    """
    return ops.clip(action + ops.clip(deviation * noise, -reach, reach), -1.0, 1.0)


@shapes(value="*B", old_value="*B", target="*B", clip="?*B")
def value_clip(value: Array, old_value: Array, target: Array, clip: Array | float) -> Array:
    """The larger squared error, halved, of the value and of the value held within `clip` of what it was; all [B].

    From the OpenAI baselines; Engstrom et al. 2020, arXiv:2005.12729, section 2. No gradient into old_value and target.
    """
    old_value, target = ops.stop_gradient(old_value), ops.stop_gradient(target)
    near = old_value + ops.clip(value - old_value, -clip, clip)
    return 0.5 * ops.maximum(ops.square(value - target), ops.square(near - target))


@shapes(x="*B", weight="?*B")
def standardise(x: Array, weight: Array | float = 1.0) -> Array:
    """Mean 0 and standard deviation 1 over all of x, any shape; 0 where all values are equal, or none has a weight. A
    number that alone has a weight stays as it is: 0 would teach nothing.

    weight: how far each number counts in mean and deviation, of the shape of x.
    """
    share = ops.maximum(ops.replica_mean(ops.mean(weight)), 1e-8)
    alone = share * (0.999 * math.prod(x.shape) * replica_count()) <= ops.max(weight)
    mean = ops.replica_mean(ops.mean(weight * x)) / share
    centred = x - mean
    deviation = ops.sqrt(ops.replica_mean(ops.mean(weight * ops.square(centred))) / share)
    # Equal values deviate by the rounding of their mean in float32.
    same = deviation <= 1e-5 * ops.abs(mean)
    return ops.where(same, ops.where(alone, x, 0.0), centred / (deviation + 1e-8))
