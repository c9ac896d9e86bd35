"""Agents with some of their methods replaced, or with a term added to one of their losses."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, get_args

import gymnasium as gym

from etude.agent import ActsBy, Agent, Losses, Recorded
from etude.algorithms import ALGORITHMS
from etude.base.data import RECORDED, Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.networks import Maker
from etude.networks.network import parts_of

ATTRIBUTES = ("actions", "acts_by", "learns_from")  # of agent classes, that are no methods


def variant(agent: type[Agent], *, name: str | None = None, **replaced: Any) -> type[Agent]:
    """An agent class that is `agent` but for what is replaced.

    agent: the class of an algorithm, such as `etude.algorithms.PPO`, or one of your own.
    name: of the new class, which messages and checkpoints name; None takes the agent's name followed by "Variant".
    replaced: methods, as functions that take `self` first, and the class attributes `actions`, `acts_by` and
        `learns_from`. A function calls what it replaces as `PPO.loss(self, batch, noise)`.

    It takes the agent's config, or one that you derive from it. To load a run of it, give it again:
    `etude.load(path, agent=...)`. Raises ConfigError for names that are none of the agent's, and for functions that
    cannot be called like what they replace.
    """
    if not (isinstance(agent, type) and issubclass(agent, Agent)):
        raise ConfigError(f"variant takes the class of an agent, such as etude.algorithms.PPO; got {agent!r}.")
    name = f"{agent.__name__}Variant" if name is None else name
    if not (isinstance(name, str) and name.isidentifier()) or name.lower() in ALGORITHMS:
        raise ConfigError(
            f"variant: name = {name!r}; expected the name of a class that is not the name of an algorithm, because "
            "checkpoints tell them apart by it."
        )
    allowed = [
        *ATTRIBUTES,
        *[name for name, _ in inspect.getmembers(agent, inspect.isroutine) if not name.startswith("_")],
    ]
    if unknown := replaced.keys() - set(allowed):
        raise ConfigError(
            f"{agent.__name__} has no {', '.join(sorted(unknown))} to replace; it has {', '.join(sorted(allowed))}."
        )
    for place, value in replaced.items():
        if place in ATTRIBUTES:
            if place == "acts_by" and value not in get_args(ActsBy):
                raise ConfigError(f"{name}: acts_by = {value!r}; expected one of {', '.join(get_args(ActsBy))}.")
            classes = value if isinstance(value, tuple) else ()
            if place == "actions" and not (
                classes and all(isinstance(x, type) and issubclass(x, gym.Space) for x in classes)
            ):
                raise ConfigError(
                    f"{name}: actions = {value!r}; expected a tuple of classes of spaces, such as (Discrete,)."
                )
        else:
            # Raise ConfigError for what cannot be called with the arguments of the method that it replaces
            own = inspect.signature(getattr(agent, place)).parameters.values()
            expected = f"{agent.__name__}.{place}({', '.join(str(p.replace(annotation=p.empty)) for p in own)})"
            if not inspect.isfunction(value):
                raise ConfigError(
                    f"{place} = {value!r} cannot replace {expected}; expected a function of these arguments."
                )
            required = [p for p in own if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            given = inspect.signature(value)
            try:
                given.bind(*required)
            except TypeError:
                raise ConfigError(
                    f"The function {place}{given} cannot replace {expected}; expected the same arguments, self first."
                ) from None
    added = {
        "__doc__": f"{agent.__name__} with {', '.join(replaced) or 'nothing'} replaced.",
        "__str__": lambda _: name,
    }
    return type(name, (agent,), {**added, **replaced})


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
        trained = [name for name, part in parts_of(self).items() if set(part.variables) - part.frozen]
        losses = list(dict.fromkeys(map(self.trained_by, trained)))
        if to not in losses and (to is not None or len(losses) != 1):
            raise ConfigError(
                f"Auxiliary: to = {to!r}; the losses of {type(self).__name__} are {', '.join(losses)}. Name the one "
                "that the term is added to."
            )

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
        term = copy.copy(before)
        term.value, term.metrics = before.value + coefficient * value, {**before.metrics, name: value}
        return Losses({**losses, target: term})

    kind = variant(base, name=f"{base.__name__}_{name}", build=build, loss=with_term)
    found = kind.__new__(kind)
    vars(found).update(vars(agent))
    if reads_data:
        found.recorded = {**agent.recorded, name: Recorded(data, batch_size)}
    return found
