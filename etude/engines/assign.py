"""Lagged networks of an agent that is one object: variables that follow others, in place."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from etude.base.errors import NetworkError


def assign_param(targets: Iterable[Any], sources: Iterable[Any], tau: float = 1.0) -> None:
    """target += tau * (source - target) for corresponding variables of Keras, or tensors of torch.

    tau: 1 copies (Mnih et al. 2015); less lets the targets follow slowly (Lillicrap et al. 2016, arXiv:1509.02971).
    Raises NetworkError where the two are not alike.
    """
    targets, sources = list(targets), list(sources)
    shapes = [[tuple(variable.shape) for variable in variables] for variables in (targets, sources)]
    if shapes[0] != shapes[1]:
        raise NetworkError(f"assign_param got variables of shapes {shapes[0]} for {shapes[1]}; expected the same.")
    if "torch" in sys.modules and any(isinstance(target, sys.modules["torch"].Tensor) for target in targets):
        _follow_in_torch(targets, sources, tau)
        return
    for target, source in zip(targets, sources, strict=True):
        copies = isinstance(tau, float | int) and tau == 1.0
        target.assign(source if copies else target + tau * (source - target))


def _follow_in_torch(targets: list[Any], sources: list[Any], tau: float) -> None:
    import torch

    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.lerp_(source.detach(), tau)
