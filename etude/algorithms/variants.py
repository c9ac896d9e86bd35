"""Agents with some of their methods replaced."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import gymnasium as gym

from etude.agent import ActsBy, Agent
from etude.algorithms import ALGORITHMS
from etude.base.errors import ConfigError

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
    what = ", ".join(replaced) or "nothing"
    return type(name, (agent,), {"__doc__": f"{agent.__name__} with {what} replaced.", **replaced})
