"""Samples of choices that have a gradient."""

from __future__ import annotations

from etude import ops
from etude.losses.masks import MaskedValues, allowed_only
from etude.losses.shapes import shapes
from etude.ops import Array


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
