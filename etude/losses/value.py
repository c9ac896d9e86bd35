"""Temporal-difference errors of values and action values, `target - prediction`. No gradient flows into a target.

B is the batch; discount is 0 where an episode terminated. Then what R2D2 adds: values on another scale, and one
priority for a whole sequence.
"""

from __future__ import annotations

from etude import ops
from etude.losses.masks import MaskedValues, best_action, best_value
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(reward="*B", discount="*B", next_value="*B", value="*E *B")
def td(value: Array, reward: Array, discount: Array, next_value: Array) -> Array:
    """`reward + discount * next_value - value`, all [B]. Sutton 1988, doi:10.1007/BF00115009."""
    return ops.stop_gradient(reward + discount * next_value) - value


@shapes(q="B n", action="B", reward="B", discount="B", next_q="B n")
def q_learning(q: Array, action: Array, reward: Array, discount: Array, next_q: Array | MaskedValues) -> Array:
    """`reward + discount * max next_q - q[action]`. Watkins & Dayan 1992, doi:10.1007/BF00992698.

    q, next_q: [B, n]; action: [B] integers; reward, discount: [B] -> [B]. The maximum is over what `next_q` allows.
    """
    return td(ops.take_last(q, action), reward, discount, best_value(next_q))


@shapes(q="B n", action="B", reward="B", discount="B", next_q="B n", selector="B n")
def double_q(
    q: Array, action: Array, reward: Array, discount: Array, next_q: Array, selector: Array | MaskedValues
) -> Array:
    """`reward + discount * next_q[argmax selector] - q[action]`. van Hasselt et al. 2016, arXiv:1509.06461.

    q, next_q, selector: [B, n], the last two of the next observation, by the target and the online network;
    action: [B] integers; reward, discount: [B] -> [B]. The next action is one that `selector` allows.
    """
    return td(ops.take_last(q, action), reward, discount, ops.take_last(next_q, best_action(selector)))


@shapes(error="*B")
def squared(error: Array) -> Array:
    """`error**2 / 2`, any shape."""
    return 0.5 * ops.square(error)


@shapes(error="*B")
def huber(error: Array, width: float = 1.0) -> Array:
    """`error**2 / 2` up to |error| = width, then a straight line with the same slope, any shape. Huber 1964,
    doi:10.1214/aoms/1177703732."""
    return ops.huber(error, width)


@shapes(value="*B")
def rescaled(value: Array, epsilon: float = 1e-3) -> Array:
    """`sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x`, any shape: large values drawn together, and a slope of at least
    epsilon. Pohlen et al. 2018, arXiv:1805.11593, the transformed Bellman operator."""
    # sqrt(|x| + 1) - 1 = |x| / (sqrt(|x| + 1) + 1), which loses no digits near 0.
    return value / (ops.sqrt(ops.abs(value) + 1.0) + 1.0) + epsilon * value


@shapes(value="*B")
def unscaled(value: Array, epsilon: float = 1e-3) -> Array:
    """The inverse of `rescaled`, any shape. Pohlen et al. 2018, arXiv:1805.11593, proposition A.2.

    A target is `rescaled(reward + discount * unscaled(next value))`.
    """
    # Theirs divides a difference of two numbers near 1 by epsilon; this is the same number with all its digits.
    size = 2.0 * (ops.abs(value) + (1.0 + epsilon))
    root = size / (ops.sqrt(1.0 + 2.0 * epsilon * size) + 1.0)
    return ops.sign(value) * (ops.square(root) - 1.0)


@shapes(error="B L", mask="B L")
def sequence_priority(error: Array, mask: Array, eta: float = 0.9) -> Array:
    """`eta * max |error| + (1 - eta) * mean |error|` over the steps that count, [B, L] -> [B].

    Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning (ICLR), section 2.3.
    mask: [B, L], 1 where a step counts and 0 elsewhere; a sequence without any has priority 0.
    """
    size = ops.stop_gradient(ops.abs(error)) * mask
    mean = ops.sum(size, -1) / ops.maximum(ops.sum(mask, -1), 1.0)
    return eta * ops.max(size, -1) + (1.0 - eta) * mean
