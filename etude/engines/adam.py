"""The optimizer's arithmetic over `ops`, the same on every engine that threads its state through a compiled step."""

from __future__ import annotations

from typing import Any

from etude import ops
from etude.base.optimizers import Adam


def adam(settings: Adam, rate: Any, step: Any, gradient: Any, moments: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
    """One step of Kingma & Ba 2015, arXiv:1412.6980, Algorithm 1, for all of a loss's weights in one vector [P].

    step: float scalar, 1 at the first step. Returns (what to add to the weights, (first moment, second moment)).
    """
    b1, b2 = settings.beta1, settings.beta2
    first = b1 * moments[0] + (1.0 - b1) * gradient
    second = b2 * moments[1] + (1.0 - b2) * gradient * gradient
    rate = rate / (1.0 - b1**step)
    deviation = ops.sqrt(second) / ops.sqrt(1.0 - b2**step)
    return -rate * first / (deviation + settings.epsilon), (first, second)


def norm_of(gradients: list) -> Any:
    """The joint norm of some arrays."""
    return ops.sqrt(sum(ops.sum(gradient * gradient) for gradient in gradients))


def clip_by_norm(gradient: Any, limit: Any) -> tuple[Any, Any]:
    """Scale a gradient [P] so that its norm is at most `limit`; returns it and the norm before.

    Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    norm = norm_of([gradient])
    return gradient * ops.minimum(limit / (norm + 1e-6), 1.0), norm
