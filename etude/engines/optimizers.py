"""The arithmetic of optimizers over `ops`, the same on every engine, for all of a loss's weights in one vector [P]; and
a step along the natural gradient, within a trust region, which takes their place for losses that ask for it.

Schulman et al. 2015, Trust region policy optimization, arXiv:1502.05477, section 6 and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from etude import ops
from etude.optimizers import SGD, Adam, AdamW, Lion, Optimizer, RMSProp

Moments = dict[str, Any]  # the vectors [P] that an optimizer keeps, by name


class Gradient(NamedTuple):
    """What an update is computed from.

    rate: the learning rate. time: float scalar, 1 at the first update. vector: [P]. weights: returns the weights [P].
    """

    rate: Any
    time: Any
    vector: Any
    weights: Callable[[], Any]


def optimizer_update(settings: Optimizer, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    """(what to add to the weights [P], the new moments); see `etude.optimizers` for formulas."""
    return _UPDATES[type(settings)](settings, gradient, moments)


def _adam(settings: Adam, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    b1, b2 = settings.beta1, settings.beta2
    first = b1 * moments["first"] + (1.0 - b1) * gradient.vector
    second = b2 * moments["second"] + (1.0 - b2) * gradient.vector * gradient.vector
    rate = gradient.rate / _taken_in(b1, gradient.time)
    deviation = ops.sqrt(second) / ops.sqrt(_taken_in(b2, gradient.time))
    return -rate * first / (deviation + settings.epsilon), {"first": first, "second": second}


def _taken_in(beta: Any, time: Any) -> Any:
    """1 - beta**time, the weight of all gradients in a moment, without the rounding of beta**time in float32."""
    return 1.0 if isinstance(beta, float | int) and not beta else -ops.expm1(time * ops.log(beta))  # traced under rules


def _adamw(settings: AdamW, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    change, moments = _adam(settings, gradient, moments)
    return change - gradient.rate * settings.weight_decay * gradient.weights(), moments


def _rmsprop(settings: RMSProp, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    decay, vector = settings.decay, gradient.vector
    found = {"square": decay * moments["square"] + (1.0 - decay) * vector * vector}
    variance = found["square"]
    if settings.centered:
        found["mean"] = decay * moments["mean"] + (1.0 - decay) * vector
        variance = ops.maximum(variance - found["mean"] * found["mean"], 0.0)  # rounding may leave less than 0
    return -gradient.rate * vector / ops.sqrt(variance + settings.epsilon), found


def _sgd(settings: SGD, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    if not settings.momentum:
        return -gradient.rate * gradient.vector, {}
    momentum = settings.momentum * moments["momentum"] + gradient.vector
    direction = gradient.vector + settings.momentum * momentum if settings.nesterov else momentum
    return -gradient.rate * direction, {"momentum": momentum}


def _lion(settings: Lion, gradient: Gradient, moments: Moments) -> tuple[Any, Moments]:
    mean, vector = moments["mean"], gradient.vector
    direction = ops.sign(settings.beta1 * mean + (1.0 - settings.beta1) * vector)
    if not isinstance(settings.weight_decay, float) or settings.weight_decay:  # traced where a rule changes it
        direction = direction + settings.weight_decay * gradient.weights()
    return -gradient.rate * direction, {"mean": settings.beta2 * mean + (1.0 - settings.beta2) * vector}


_UPDATES: dict[type, Callable[[Any, Gradient, Moments], tuple[Any, Moments]]] = {
    Adam: _adam, AdamW: _adamw, RMSProp: _rmsprop, SGD: _sgd, Lion: _lion,
}  # fmt: skip


def norm_of(gradients: list[Any]) -> Any:
    """The joint norm of some arrays."""
    return ops.sqrt(sum(ops.sum(gradient * gradient) for gradient in gradients))


def clip_by_norm(gradient: Any, limit: Any) -> tuple[Any, Any]:
    """Scale a gradient [P] so that its norm is at most `limit`; returns it and the norm before.

    Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    norm = norm_of([gradient])
    return gradient * ops.minimum(limit / (norm + 1e-6), 1.0), norm


SMALL = 1e-10  # added to what is divided by, which is 0 where the gradient is
# Of a step: the divergence of the policies before and after it; the share that was taken
TRUST_REGION_METRICS = ("kl", "step_size")


class Differentiation(Protocol):
    """What an engine's framework does for a step."""

    def gradient(self, function: Callable[[Any], Any], at: Any) -> Any:
        """Of a scalar function of a vector; may be differentiated again."""

    def repeat(self, step: Callable[[Any], Any], times: int, carry: Any) -> Any:
        """`carry = step(carry)`, so many times; a tuple of arrays."""


def natural_step(
    config: Any, gradient: Any, weights: Any, measure: Callable[[Any], tuple[Any, Any]], by: Differentiation
) -> tuple[Any, dict[str, Any]]:
    """(what to add to the weights [P], `TRUST_REGION_METRICS` of it).

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
    return taken * step, dict(zip(TRUST_REGION_METRICS, (diverged, taken), strict=True))
