"""What an engine finds in a built agent: every variable by name, which loss trains which, which copies follow which."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from etude.agent import Agent, Losses
from etude.errors import ConfigError, NetworkError
from etude.networks.network import Maker, Normaliser, Part
from etude.protocols import Weights
from etude.schedules import Linear
from etude.spaces import Spaces


class Following(NamedTuple):
    """A lagged variable, the one that it follows, and the config field that says how fast."""

    target: str
    source: str
    every: str | None
    tau: str | None


class Structure:
    """A built agent, taken apart by name. Names are `attribute.variable`, or `attribute.key.variable` for a dict of parts."""

    def __init__(self, agent: Agent, spaces: Spaces, make: Maker):
        self.agent = copy.copy(agent)
        self.agent.noise = {}
        self.agent.build(make, spaces)
        self.parts = dict(_parts(self.agent))
        names = {id(part): name for name, part in self.parts.items()}
        self.variables = {f"{p}.{v}": value for p, part in self.parts.items() for v, value in part.variables.items()}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.following: list[Following] = []
        for name, part in self.parts.items():
            if part.trainable:
                group = name.split(".")[0]
                self.groups[group] = self.groups.get(group, ()) + tuple(f"{name}.{v}" for v in part.variables)
            if part.lag is not None:
                source = names[id(part.lag.source)]
                for v in part.variables:
                    self.following.append(Following(f"{name}.{v}", f"{source}.{v}", part.lag.every, part.lag.tau))
        self.trainable = tuple(name for group in self.groups.values() for name in group)
        self.hyper = self._hyper_names()
        self.normaliser = next((n for n, p in self.parts.items() if isinstance(p, Normaliser) and p.on), None)
        self.portable = all(part.portable for part in self.parts.values())
        self.acting = tuple(f"{p}.{v}" for p, part in self.parts.items() if part.lag is None for v in part.variables)

    def _hyper_names(self) -> tuple[str, ...]:
        followed = {name for f in self.following for name in (f.every, f.tau) if name is not None}
        fields = dataclasses.fields(self.agent.config)
        floats = {f.name for f in fields if isinstance(getattr(self.agent.config, f.name), float | Linear)}
        missing = followed - {f.name for f in fields}
        if missing:
            raise ConfigError(f"lagged names the config field {sorted(missing)}, which {type(self.agent.config).__name__} lacks.")
        return tuple(sorted(floats | followed))

    def learning_rate(self, group: str) -> str:
        """The config field with the learning rate of a loss: `critic_learning_rate` where there is one, or `learning_rate`."""
        own = f"{group}_learning_rate"
        return own if own in self.hyper else "learning_rate"

    def check_losses(self, losses: Losses) -> None:
        """Raise ConfigError where losses and trained parts do not go by the same names."""
        if set(losses) != set(self.groups):
            raise ConfigError(
                f"{type(self.agent).__name__}.loss returned losses named {sorted(losses)}; its trained parts are named "
                f"{sorted(self.groups)}. Each loss trains the part of its name: give both the same names."
            )


def _parts(agent: Agent) -> Iterator[tuple[str, Part]]:
    for name, value in vars(agent).items():
        if isinstance(value, Part):
            yield name, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(inner, Part):
                    yield f"{name}.{key}", inner


def with_hyper(agent: Agent, hyper: dict[str, Any]) -> Agent:
    """The agent with config fields replaced by (traced) scalars; its parts are shared. Skips the config's own checks, which
    are for numbers."""
    config = copy.copy(agent.config)
    for name, value in hyper.items():
        object.__setattr__(config, name, value)
    bound = copy.copy(agent)
    bound.config = config
    return bound


def draw_noise(agent: Agent, rng: np.random.Generator, k: int, n: int) -> dict[str, np.ndarray]:
    """The standard normal arrays [k, n, ...] that a learn call of k batches of n needs."""
    return {name: rng.standard_normal((k, n, *shape), np.float32) for name, shape in sorted(agent.noise.items())}


def check_weights(weights: Weights, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise NetworkError where a weight's name or shape does not fit."""
    for name, value in weights.items():
        if name not in shapes:
            raise NetworkError(f"There is no weight named {name!r}; the agent has {', '.join(sorted(shapes))}.")
        if tuple(value.shape) != tuple(shapes[name]):
            raise NetworkError(f"Weight {name!r} has shape {tuple(value.shape)}; the agent's has {tuple(shapes[name])}.")
