"""Agents with a term added to one of their losses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from etude.agent import Agent, Loss, Losses, Recorded
from etude.algorithms.variants import variant
from etude.base.data import RECORDED, Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.networks import Maker
from etude.networks.network import parts_of


def Auxiliary(
    agent: Agent,
    loss: Callable[[Any, Batch, dict[str, Any]], Any],
    data: Any = None,
    *,
    coefficient: float = 1.0,
    name: str = "auxiliary",
    to: str | None = None,
    batch_size: int = 64,
) -> Agent:
    """`agent` with `coefficient * loss(agent, batch, noise)` added to one of its losses: a supervised or
    self-supervised term, or a regularisation towards recorded actions.

    agent: of an algorithm, such as `PPO(PPOConfig())`, of `etude.variant`, of `Auxiliary`, or your own.
    loss: returns a scalar of the engine's framework, written over `etude.ops`. agent: with its networks, as in
        `Agent.loss`. batch: what the agent learns from, or recorded transitions. noise: as the agent's loss gets it.
    data: recorded episodes, as `Run(data=)` takes them, that `batch` is drawn from: `batch_size` transitions for each
        gradient step. Rewards are those that were recorded, neither clipped nor normalised.
    name: of the metric that is the term without its coefficient, and of what checkpoints hold of the data.
    to: the loss that the term is added to; needed where the agent has several.

    Its class is a variant of the agent's. Loading a run of it takes it again: `etude.load(path, agent=...)`.
    """
    if not isinstance(agent, Agent):
        raise ConfigError(f"Auxiliary takes an agent, such as etude.algorithms.PPO(config); got {agent!r}.")
    base = type(agent)
    # Raise ConfigError for arguments that make no term
    if base.loss is Agent.loss:
        raise ConfigError(f"{base.__name__} has no loss that a term could be added to.")
    if not callable(loss):
        raise ConfigError(f"Auxiliary: loss = {loss!r}; expected a function loss(agent, batch, noise).")
    try:
        inspect.signature(loss).bind(None, None, None)
    except TypeError as problem:
        given = inspect.signature(loss)
        raise ConfigError(f"Auxiliary: loss takes {given}; expected loss(agent, batch, noise).") from problem
    if not isinstance(coefficient, Real) or isinstance(coefficient, bool) or not math.isfinite(coefficient):
        raise ConfigError(f"Auxiliary: coefficient = {coefficient!r}; expected a finite number.")
    if not (isinstance(name, str) and name.isidentifier()):
        raise ConfigError(f"Auxiliary: name = {name!r}; expected a name of letters, digits and '_'.")
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"Auxiliary: batch_size = {batch_size!r}; expected a whole number of at least 1.")
    if name in agent.recorded:
        raise ConfigError(f"Auxiliary: name = {name!r} is that of another term of this agent; choose another name.")
    reads_data = data is not None

    def build(self: Any, make: Maker, spaces: Spaces) -> None:
        base.build(self, make, spaces)
        _check_target(self, to)

    def with_term(self: Any, batch: Batch, noise: dict[str, Any]) -> Losses:
        losses = base.loss(self, batch, noise)
        seen = Batch(index=None, **batch.extras[RECORDED][name]) if reads_data else batch  # type: ignore[arg-type]
        # The losses with a term added to the one named `to`, or to the only one
        value = loss(self, seen, noise)
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape):
            what = type(value).__name__ if shape is None else f"an array of shape {list(shape)}"
            raise ConfigError(f"The loss of {name!r} returned {what}; expected a scalar, such as ops.mean(...) of it.")
        target = next(iter(losses)) if to is None else to
        before = losses[target]
        if any(name in own.metrics for own in losses.values()):
            raise ConfigError(f"Auxiliary: name = {name!r} is the name of a metric of the agent; choose another name.")
        term = Loss(before.value + coefficient * value, before.td_error, **before.metrics, **{name: value})
        return Losses({**losses, target: term})

    kind = variant(base, name=f"{base.__name__}_{name}", build=build, loss=with_term)
    found = kind.__new__(kind)
    vars(found).update(vars(agent))
    if reads_data:
        found.recorded = {**agent.recorded, name: Recorded(data, batch_size)}
    return found


def _check_target(agent: Agent, to: str | None) -> None:
    """Raise ConfigError where a built agent has no such loss, or several to choose from."""
    trained = [name for name, part in parts_of(agent).items() if set(part.variables) - part.frozen]
    losses = list(dict.fromkeys(map(agent.trained_by, trained)))
    if to not in losses and (to is not None or len(losses) != 1):
        raise ConfigError(
            f"Auxiliary: to = {to!r}; the losses of {type(agent).__name__} are {', '.join(losses)}. Name the one that "
            "the term is added to."
        )
