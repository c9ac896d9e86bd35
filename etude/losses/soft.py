"""Soft actor-critic. Haarnoja et al. 2018, arXiv:1812.05905. B is the batch; E stacked critics; n choices."""

from __future__ import annotations

from etude import ops
from etude.losses.distributions import Categorical
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(q="E *B")
def minimum(q: Array) -> Array:
    """The minimum over E critics, [E, ...] -> [...]: clipped double Q-learning. Fujimoto et al. 2018, arXiv:1802.09477,
    section 4.2."""
    return ops.min(q, 0)


@shapes(q="E *B", noise="E")
def subset_minimum(q: Array, noise: Array, size: int) -> Array:
    """The minimum over the `size` critics with the smallest noise, [E, ...] -> [...]: a random subset in the target.
    Chen et al. 2021 (REDQ), arXiv:2101.05982, algorithm 1, line 6."""
    chosen = ops.reshape(noise <= ops.sort(noise)[size - 1], (-1, *[1] * (q.ndim - 1)))
    return ops.min(ops.where(chosen, q, ops.max(q, 0, keepdims=True)), 0)


@shapes(reward="B", discount="B", next_q="B", next_log_prob="B", temperature="?B")
def soft_target(
    reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array | float
) -> Array:
    """`reward + discount * (next_q - temperature * next_log_prob)`, all [B], without a gradient. Equations 3 and 5."""
    return ops.stop_gradient(reward + discount * (next_q - temperature * next_log_prob))


@shapes(q="B", log_prob="B", temperature="?B")
def soft_actor(q: Array, log_prob: Array, temperature: Array | float) -> Array:
    """`temperature * log_prob - q`, all [B], of a reparameterised action. Equation 9. No gradient into temperature."""
    return ops.stop_gradient(temperature) * log_prob - q


@shapes(log_prob="B", log_temperature="?B", target_entropy="?B")
def soft_temperature(log_temperature: Array, log_prob: Array, target_entropy: Array | float) -> Array:
    """`-log_temperature * (log_prob + target_entropy)`, [B]; no gradient into log_prob.

    Equation 18 with the logarithm in place of the temperature, as in the authors' code: the same sign of the gradient.
    log_prob: of a sampled action, or of Discrete ones its mean over all of them, which is minus the entropy.
    """
    return -log_temperature * ops.stop_gradient(log_prob + target_entropy)


@shapes(q="B n", policy="B n", temperature="")
def soft_value(q: Array, policy: Categorical, temperature: Array | float) -> Array:
    """`sum of probability * (q - temperature * log probability)` over Discrete actions: q [B, n] -> [B].

    Christodoulou 2019, arXiv:1910.07207, equation 10. As next value it goes to `value.td`, which stops its gradient.
    """
    return ops.sum(policy.probabilities() * (q - temperature * policy.log_probabilities()), -1)


@shapes(q="B n", policy="B n", temperature="")
def soft_discrete_actor(q: Array, policy: Categorical, temperature: Array | float) -> Array:
    """`-soft_value`, [B], with a gradient into the logits alone. Christodoulou 2019, arXiv:1910.07207, equation 12."""
    return -soft_value(ops.stop_gradient(q), policy, ops.stop_gradient(temperature))
