"""Soft actor-critic. Haarnoja et al. 2018, arXiv:1812.05905. B is the batch; E stacked critics."""

from __future__ import annotations

from etude import ops
from etude.ops import Array


def lowest(q: Array) -> Array:
    """The lowest of E critics' values, [E, B] -> [B]. Fujimoto et al. 2018, arXiv:1802.09477."""
    return ops.min(q, 0)


def soft_target(
    reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array | float
) -> Array:
    """`reward + discount * (next_q - temperature * next_log_prob)`, all [B], without a gradient. Equations 3 and 5."""
    return ops.stop_gradient(reward + discount * (next_q - temperature * next_log_prob))


def soft_actor(q: Array, log_prob: Array, temperature: Array | float) -> Array:
    """`temperature * log_prob - q`, all [B], of a reparameterised action. Equation 9. No gradient into temperature."""
    return ops.stop_gradient(temperature) * log_prob - q


def soft_temperature(log_temperature: Array, log_prob: Array, target_entropy: float) -> Array:
    """`-log_temperature * (log_prob + target_entropy)`, [B]; no gradient into log_prob.

    Equation 18 with the logarithm in place of the temperature, as in the authors' code: the same sign of the gradient.
    """
    return -log_temperature * ops.stop_gradient(log_prob + target_entropy)
