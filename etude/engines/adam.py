"""The optimizer's arithmetic over `ops`, the same on every engine that threads its state through a compiled step."""

from __future__ import annotations

from typing import Any

from etude import ops
from etude.optimizers import Adam

Arrays = dict[str, Any]


def adam(
    settings: Adam, rate: Any, step: Any, values: Arrays, gradients: Arrays, moments: tuple[Arrays, Arrays]
) -> tuple:
    """One step of Kingma & Ba 2015, arXiv:1412.6980, Algorithm 1. `step` is a float scalar, 1 at the first step.

    Returns (values, (first moments, second moments)).
    """
    b1, b2 = settings.beta1, settings.beta2
    rate = rate / (1.0 - b1**step)
    correction = ops.sqrt(1.0 - b2**step)
    first = {n: b1 * moments[0][n] + (1.0 - b1) * g for n, g in gradients.items()}
    second = {n: b2 * moments[1][n] + (1.0 - b2) * g * g for n, g in gradients.items()}
    new = {n: values[n] - rate * first[n] / (ops.sqrt(second[n]) / correction + settings.epsilon) for n in gradients}
    return new, (first, second)


def clip_by_norm(gradients: Arrays, limit: Any) -> tuple[Arrays, Any]:
    """Scale gradients so that their joint norm is at most `limit`; returns them and the norm before.

    Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    norm = ops.sqrt(sum(ops.sum(g * g) for g in gradients.values()))
    factor = ops.minimum(limit / (norm + 1e-6), 1.0)
    return {name: g * factor for name, g in gradients.items()}, norm
