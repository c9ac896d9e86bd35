"""What `param` of an agent of one's own says: which optimizer trains which variables, and by which loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import ConfigError, NetworkError


def grouped(agent: Any, optimizers: Sequence[Any], kind: type) -> list[list[Any]]:
    """`agent.param` as one list of variables for each optimizer; iterators in it become lists that can be read again.

    kind: what a variable is. ConfigError where there are not as many lists as optimizers, or other things in them.
    """
    if isinstance(agent.param, Iterator):
        agent.param = list(agent.param)
    given = list(agent.param)
    several = bool(given) and not isinstance(given[0], kind) and isinstance(given[0], Iterable)
    if any(isinstance(group, Iterator) for group in given):
        agent.param = given = [list(group) for group in given]
    groups = [list(group) for group in given] if several else [given]
    if len(groups) != len(optimizers):
        raise ConfigError(
            f"train got {len(optimizers)} optimizer{'s' * (len(optimizers) != 1)}; param of {type(agent).__name__} has "
            f"{len(groups)} list{'s' * (len(groups) != 1)} of variables. Give one optimizer for each list in param, "
            "and a list of lists for several."
        )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ConfigError("train got the same optimizer twice; each list in param needs one of its own.")
    strange = next((one for group in groups for one in group if not isinstance(one, kind)), None)
    if strange is not None:
        raise ConfigError(
            f"param of {type(agent).__name__} holds a {type(strange).__module__}.{type(strange).__name__}; expected "
            f"{kind.__module__.partition('.')[0]} variables. Derive agents in Keras from etude.RL, agents in PyTorch "
            "from etude.RL_pytorch."
        )
    return groups


def flat(param: Any, kind: type) -> list[Any]:
    """All variables in `param`, in its order."""
    return [one for part in param for one in ([part] if isinstance(part, kind) else part)]


def check_trained(agent: Any, groups: Sequence[Sequence[Any]]) -> None:
    """Raise ConfigError where an optimizer has nothing to train."""
    if not all(groups):
        raise ConfigError(
            f"param of {type(agent).__name__} holds no trainable variables. Build the networks in __init__ before "
            "their weights are read: begin a keras.Sequential with keras.Input, or call a network once on an array."
        )


def read_losses(agent: Any, found: Any, weight: Any, optimizers: int) -> list[Any]:
    """The scalars that `__call__` returned, a loss per example [B] averaged after the weights [B] are multiplied in.

    ConfigError where a loss has another shape, or there are neither as many as optimizers nor one.
    """
    losses = list(found) if isinstance(found, list | tuple) else [found]
    name = type(agent).__name__
    if len(losses) not in (1, optimizers):
        raise ConfigError(
            f"{name}.__call__ returned {len(losses)} losses for {optimizers} optimizers; expected one loss for each "
            "optimizer, or one for all. Return as many losses as train was given optimizers."
        )
    return [_averaged(name, loss, weight) for loss in losses]


def _averaged(name: str, loss: Any, weight: Any) -> Any:
    n = weight.shape[0]
    if isinstance(loss, float | int | np.generic | np.ndarray) or loss is None:
        raise ConfigError(
            f"{name}.__call__ returned {loss!r} as a loss; expected an array computed from the networks, a scalar or "
            f"one value per example, ({n},). Return the loss without turning it into a Python number or a NumPy array."
        )
    shape = tuple(loss.shape)
    if shape == ():
        return loss
    if shape == (n,):
        return ops.mean(loss * weight)
    raise ConfigError(
        f"{name}.__call__ returned a loss of shape {shape} for a batch of {n}; expected a scalar or one value per "
        f"example, ({n},). Reduce the other axes, as with mean(loss, axis=-1)."
    )


def no_gradient(agent: Any, variable: str, loss: int, losses: int) -> ConfigError:
    """The error for a trained variable that a loss does not depend on."""
    which = "the loss" if losses == 1 else f"loss {loss}"
    return ConfigError(
        f"{type(agent).__name__}: {which} does not depend on {variable!r}, which param trains with it. Take it out of "
        "param, let the loss use it, or put the losses into the order of the lists in param."
    )


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
