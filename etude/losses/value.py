"""Temporal-difference errors of values and action values, `target - prediction`. No gradient flows into a target.

B is the batch; discount is 0 where an episode terminated.
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
