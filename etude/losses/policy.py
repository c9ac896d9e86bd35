"""Losses of policies. Advantages and log probabilities of the past carry no gradient. B is the batch.

Then samples of choices that have a gradient, and evolution strategies, in NumPy: they need no gradient of a framework.
Salimans et al. 2017, arXiv:1703.03864.
"""

from __future__ import annotations

import math

import numpy as np

from etude import ops
from etude.base.errors import ConfigError
from etude.losses.masks import MaskedValues, allowed_only
from etude.losses.shapes import shapes
from etude.ops import Array
from etude.ops.dispatch import replica_count


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


@shapes(value="*B n", log_prior="*B n", temperature="")
def reweighted(value: Array, log_prior: Array, temperature: Array | float) -> Array:
    """`softmax(log_prior + value / temperature)`, [..., n], without a gradient: the distribution over n actions that
    raises the value within a bound on its divergence from the prior. The E-step of MPO: Abdolmaleki et al. 2018,
    arXiv:1806.06920; over the n steps of a batch that of V-MPO: Song et al. 2019, arXiv:1909.12238, equation 3."""
    return ops.stop_gradient(ops.softmax(log_prior + value / temperature))


@shapes(value="*B n", log_prior="*B n", temperature="", bound="")
def temperature_dual(value: Array, log_prior: Array, temperature: Array | float, bound: Array | float) -> Array:
    """`temperature * (bound + log sum exp(log_prior + value / temperature))`, [...], least at the temperature with
    which `reweighted` diverges from the prior by the bound, in nats. A gradient into the temperature alone. The dual
    function of the E-step, in both papers; in the second equation 4."""
    value, log_prior = ops.stop_gradient(value), ops.stop_gradient(log_prior)
    return temperature * (bound + ops.logsumexp(log_prior + value / temperature))


@shapes(divergence="*B", multiplier="", bound="")
def multiplier_dual(divergence: Array, multiplier: Array, bound: Array | float) -> Array:
    """`multiplier * (bound - divergence)`, any shape, of a Lagrange multiplier: it rises where a policy diverges
    further than the bound. A gradient into the multiplier alone. Song et al. 2019, arXiv:1909.12238, equation 5."""
    return multiplier * (bound - ops.stop_gradient(divergence))


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


@shapes(normal="*B 2 n")
def gumbel(normal: Array) -> Array:
    """Standard Gumbel numbers [..., n] from standard normal ones [..., 2, n].

    Half the sum of two squares is exponentially distributed, and minus its logarithm is Gumbel's (Devroye 1986,
    "Non-uniform random variate generation", doi:10.1007/978-1-4613-8643-8).
    """
    exponential = 0.5 * ops.sum(ops.square(normal), -2)
    return -ops.log(exponential + 1e-20)


@shapes(logits="B n", gumbel="B n", temperature="")
def gumbel_softmax(logits: Array | MaskedValues, gumbel: Array, temperature: Array | float) -> Array:
    """One-hot samples of softmax(logits), all [B, n], with the gradient of `softmax((logits + gumbel) / temperature)`.

    The straight-through estimator of Jang et al. 2017, arXiv:1611.01144. What a mask forbids is never sampled.
    """
    soft = ops.softmax((allowed_only(logits) + gumbel) / temperature)
    hard = ops.one_hot(ops.argmax(soft), soft.shape[-1])
    return soft + ops.stop_gradient(hard - soft)


@shapes(fitness="*B")
def centred_ranks(fitness: np.ndarray) -> np.ndarray:
    """Ranks spread from -0.5, the worst, to 0.5, the best, any shape, float32; equal ones share the mean of theirs.

    Salimans et al. 2017, section 2.1: what is left of the fitness is its order. Of a single number it is 0.
    ConfigError where a number is NaN, which has no rank.
    """
    if np.isnan(fitness).any():
        raise ConfigError(
            f"centred_ranks: {np.isnan(fitness).sum()} of {np.size(fitness)} numbers are NaN; expected the fitness of "
            "each member. Give -inf to a member that failed."
        )
    _, level, count = np.unique(fitness, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - 0.5 * (count + 1)  # of each level: the mean of the ranks 0, 1, ... of its members
    highest = max(np.size(fitness) - 1, 1)
    centre = 0.5 * (np.size(fitness) - 1)
    return ((rank - centre) / highest)[level].reshape(np.shape(fitness)).astype(np.float32)


@shapes(utility="2 n", noise="n P", deviation="")
def antithetic_gradient(utility: np.ndarray, noise: np.ndarray, deviation: float) -> np.ndarray:
    """The gradient of the expected utility: `sum of (utility[0] - utility[1]) * noise / (2 * n * deviation)`, [P].

    Salimans et al. 2017, algorithm 1 with mirrored noise. utility: [2, n], of the parameters plus and minus
    `deviation * noise`, as `centred_ranks` shapes all 2 * n together; noise: [n, P] standard normal.
    """
    difference = utility[0] - utility[1]
    return (difference @ noise / (2 * len(noise) * deviation)).astype(np.float32)


@shapes(returns="2 n", noise="n P")
def augmented_gradient(returns: np.ndarray, noise: np.ndarray, top: int | None = None) -> np.ndarray:
    """`sum of (returns[0] - returns[1]) * noise / (b * s)`, [P], over the b directions of the highest returns, with the
    standard deviation s of their returns. Zeros where these are equal.

    Mania et al. 2018, arXiv:1803.07055, Algorithm 2, steps 6 and 7. returns: [2, n], of the parameters plus and minus
    a multiple of `noise` [n, P]. top: b, at most n; None: all.
    """
    best = np.argsort(-returns.max(0), kind="stable")[:top]
    deviation = returns[:, best].std()
    scaled = returns[:, best] / deviation if deviation > 0 else 0.0 * returns[:, best]
    return antithetic_gradient(scaled, noise[best], 0.5)
