"""A step along the natural gradient, within a trust region: the same arithmetic over `ops` on every engine.

Schulman et al. 2015, Trust region policy optimization, arXiv:1502.05477, section 6 and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from etude import ops

SMALL = 1e-10  # added to what is divided by, which is 0 where the gradient is
METRICS = ("kl", "step_size")  # of a step: the divergence of the policies before and after it; the share that was taken


class Differentiation(Protocol):
    """What an engine's framework does for a step."""

    def gradient(self, function: Callable[[Any], Any], at: Any) -> Any:
        """Of a scalar function of a vector; may be differentiated again."""

    def repeat(self, step: Callable[[Any], Any], times: int, carry: Any) -> Any:
        """`carry = step(carry)`, so many times; a tuple of arrays."""


def natural_step(
    config: Any, gradient: Any, weights: Any, measure: Callable[[Any], tuple[Any, Any]], by: Differentiation
) -> tuple[Any, dict[str, Any]]:
    """(what to add to the weights [P], `METRICS` of it).

    The direction solves `(F + cg_damping) x = gradient` by conjugate gradients, where F is the Fisher matrix; its
    products with vectors are derivatives of the divergence's gradient. Its length makes the quadratic estimate of the
    divergence `max_kl`. The line search shortens it until the loss falls and the divergence is at most `max_kl`; where
    it never does, the weights stay.

    config: see `config.TrustRegionConfig`. gradient: [P] of the loss at these weights. measure: at weights [P], (the
        loss, what `Loss.policy` holds).
    """
    loss, (before, weight) = measure(weights)

    def divergence(vector: Any) -> Any:
        return ops.mean(weight * before.kl(measure(vector)[1][0]))

    def product(direction: Any) -> Any:
        slope = lambda vector: ops.sum(by.gradient(divergence, vector) * direction)  # noqa: E731
        return by.gradient(slope, weights) + config.cg_damping * direction

    def closer(carry: Any) -> Any:
        solution, residual, direction, squared = carry
        image = product(direction)
        length = squared / (ops.sum(direction * image) + SMALL)
        solution, residual = solution + length * direction, residual - length * image
        left = ops.sum(residual * residual)
        return solution, residual, residual + left / (squared + SMALL) * direction, left

    start = (ops.zeros_like(gradient), gradient, gradient, ops.sum(gradient * gradient))
    direction = by.repeat(closer, config.cg_iterations, start)[0]
    curvature = ops.sum(direction * product(direction))
    step = -ops.sqrt(2.0 * config.max_kl / (ops.maximum(curvature, 0.0) + SMALL)) * direction

    def shorter(carry: Any) -> Any:
        size, taken, diverged = carry
        found, _ = measure(weights + size * step)
        distance = divergence(weights + size * step)
        fits = ops.cast(found < loss, "float32") * ops.cast(distance <= config.max_kl, "float32")
        first = ops.cast(taken == 0.0, "float32") * fits
        return size * config.line_search_decay, taken + first * size, ops.where(first > 0.0, distance, diverged)

    zero = ops.zeros_like(curvature)
    _, taken, diverged = by.repeat(shorter, config.line_search_steps, (zero + 1.0, zero, zero))
    return taken * step, dict(zip(METRICS, (diverged, taken), strict=True))
