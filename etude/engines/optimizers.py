"""The arithmetic of optimizers over `ops`, the same on every engine, for all of a loss's weights in one vector [P]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from etude import ops
from etude.base.optimizers import SGD, Adam, AdamW, Lion, Optimizer, RMSProp

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
    """(what to add to the weights [P], the new moments); see `base.optimizers` for formulas."""
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
