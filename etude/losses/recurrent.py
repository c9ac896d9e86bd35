"""What R2D2 adds: values on another scale, and one priority for a whole sequence."""

from __future__ import annotations

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array


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
