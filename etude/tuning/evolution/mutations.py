"""Mutations of a config: network architecture, activation functions, hyperparameters, and noise on parameters."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.config import SequenceConfig
from etude.networks.specs import ACTIVATIONS, Recurrent, Transformer
from etude.tuning.evolution.structure import (
    ACTIVATION,
    HYPERPARAMETER,
    LAYER_KINDS,
    PARAMETERS,
    UNIT_KINDS,
    ArchitectureLimits,
    Moves,
    Mutation,
    moves_of,
    networks_in,
    replaced,
)

LIMITS: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-5, 1e-2),
    "batch_size": (8, 1024),
    "minibatch_size": (8, 1024),
    "train_every": (1, 200),
}  # of the hyperparameters that are mutated if no others are named
KINDS = ("none", "architecture", "parameters", "activation", "hyperparameters")
TRIES = 20  # draws of a hyperparameter's value until it differs and the config takes it


@dataclass(frozen=True)
class Mutations:
    """Which mutations a member of a population undergoes: `mutations(config, rng)` returns another config.

    none, architecture, parameters, activation, hyperparameters: relative probabilities of the kinds of mutation. A kind
        that is impossible, as everything is at its limit, is drawn anew.
    select: the hyperparameters that are mutated; (): those of learning_rate, batch_size, minibatch_size and
        train_every that the config has. limits: the (smallest, largest) value of a hyperparameter, by name; needed for
        others than these four.
    step: whole numbers are rounded up or down at random, so that small ones can grow, too.
    """

    none: float = 0.4  # of a copy without mutation
    architecture: float = 0.2  # of a change of layers, units, filters or kernels
    new_layer: float = 0.2  # probability that this adds or removes a layer or changes a kernel
    parameters: float = 0.2  # of noise on the weights of the acting network
    activation: float = 0.0  # of another activation function
    hyperparameters: float = 0.2  # of a step of one hyperparameter
    select: tuple[str, ...] | list[str] = ()
    strength: float = 0.1  # standard deviation of the noise, relative to each weight
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    step: float = 0.2  # standard deviation of the logarithm of the factor by which one changes
    activations: tuple[str, ...] | list[str] = ("relu", "elu", "gelu")  # that are drawn from
    network: ArchitectureLimits = ArchitectureLimits()  # (smallest, largest) architecture

    def __post_init__(self) -> None:
        checks.not_negative(self, *KINDS, "strength")
        checks.fractions(self, "new_layer")
        checks.positive(self, "step")
        object.__setattr__(self, "select", tuple(self.select))
        object.__setattr__(self, "activations", tuple(self.activations))
        object.__setattr__(self, "limits", {name: (low, high) for name, (low, high) in self.limits.items()})
        if not any(getattr(self, kind) for kind in KINDS):
            raise ConfigError("Mutations: every probability is 0; give one of them a number above 0, such as none=1.")
        for name in self.activations:
            if name not in ACTIVATIONS:
                raise ConfigError(f"Mutations: unknown activation {name!r}; expected some of {', '.join(ACTIVATIONS)}.")
        for name, (low, high) in self.limits.items():
            if not 0 < low <= high:
                raise ConfigError(
                    f"Mutations: limits of {name} are ({low}, {high}); expected 0 < smallest <= largest: a "
                    "hyperparameter is multiplied by a factor."
                )

    def check(self, config: Any) -> None:
        """Raise ConfigError where a hyperparameter is missing, no number, without limits or outside of them."""
        for name in self.select:
            if name not in {f.name for f in dataclasses.fields(config)}:
                raise ConfigError(
                    f"Mutations: select names {name!r}, which {type(config).__name__} lacks; its numbers are "
                    f"{', '.join(_numbers(config))}."
                )
            if name not in _numbers(config):
                raise ConfigError(
                    f"Mutations: select names {name!r}, which is {getattr(config, name)!r}; expected a positive number."
                )
            if name not in self.limits and name not in LIMITS:
                raise ConfigError(f"Mutations: {name} has no limits; give limits={{{name!r}: (smallest, largest)}}.")
        for name in [name for name in self.selected(config) if name in self.limits]:
            (low, high), value = self.limits[name], value_at_start(getattr(config, name))
            if not low <= value <= high:
                raise ConfigError(
                    f"Mutations: {name} = {value:g} is outside of its limits ({low:g}, {high:g}); give "
                    f"limits={{{name!r}: (smallest, largest)}} that hold it."
                )

    def __call__(self, config: Any, rng: np.random.Generator) -> tuple[Any, Mutation]:
        """(another config, what changed). Only `rng` decides, and is drawn from. Raises ConfigError as `check`."""
        self.check(config)
        weights = {kind: getattr(self, kind) for kind in KINDS}
        mutate = {
            "none": lambda config, rng: (config, Mutation()), "architecture": self._architecture,
            "parameters": self._parameters, "activation": self._activation, "hyperparameters": self._hyperparameters,
        }  # fmt: skip
        while True:
            kinds = [kind for kind, weight in weights.items() if weight]
            if not kinds:
                return config, Mutation()
            shares = np.array([weights[kind] for kind in kinds], float)
            kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
            found = mutate[kind](config, rng)
            if found is not None:
                return found
            weights = {**weights, kind: 0.0}

    def selected(self, config: Any) -> tuple[str, ...]:
        """The hyperparameters of a config that are mutated."""
        numbers = _numbers(config)
        return tuple(self.select) or tuple(name for name in LIMITS if name in numbers)

    def _parameters(self, config: Any, rng: np.random.Generator) -> tuple[Any, Mutation] | None:
        if not self.strength:
            return None
        return config, Mutation(PARAMETERS, strength=self.strength, seed=int(rng.integers(2**31)))

    def _architecture(self, config: Any, rng: np.random.Generator) -> tuple[Any, Mutation] | None:
        """One network of the config, at random; another one where it can change in no way."""
        kinds = (LAYER_KINDS, UNIT_KINDS) if rng.random() < self.new_layer else (UNIT_KINDS, LAYER_KINDS)
        networks = networks_in(config.network)
        for path in _shuffled(list(networks), rng):
            fixed = bool(config.gsde_features) and path in (("network",), ("network", "actor"))
            moves: Moves = moves_of(networks[path], self.network, fixed)
            if isinstance(config, SequenceConfig) and config.stored_state:  # the replay holds states of the cell's size
                moves = {key: found for key, found in moves.items() if key[1] != "cell"}
            for group in kinds:
                chosen = [key for key, candidates in moves.items() if key[0] in group and candidates]
                for key in _shuffled(chosen, rng):
                    for spec, mutation in _shuffled(moves[key], rng):
                        changed = _taken(config, path, spec)
                        if changed is not None:
                            return changed, dataclasses.replace(mutation, field=".".join(path))
        return None

    def _activation(self, config: Any, rng: np.random.Generator) -> tuple[Any, Mutation] | None:
        networks = networks_in(config.network)
        for path in _shuffled(list(networks), rng):
            spec, where = networks[path], path
            if isinstance(spec, Recurrent | Transformer):
                spec, where = spec.before, (*path, "before")
            for after in _shuffled([name for name in self.activations if name != spec.activation], rng):
                changed = _taken(config, where, dataclasses.replace(spec, activation=after))
                if changed is not None:
                    return changed, Mutation(ACTIVATION, ".".join(path), before=spec.activation, after=after)
        return None

    def _hyperparameters(self, config: Any, rng: np.random.Generator) -> tuple[Any, Mutation] | None:
        for name in _shuffled(list(self.selected(config)), rng):
            value = getattr(config, name)
            start, limits = value_at_start(value), self.limits.get(name)
            if limits is None:  # the default ones, which hold any value that a config has
                limits = min(LIMITS[name][0], start), max(LIMITS[name][1], start)
            for _ in range(TRIES):
                changed = _stepped(value, limits, self.step, rng)
                if changed == value:
                    continue
                try:
                    found = dataclasses.replace(config, **{name: changed})
                except ConfigError:  # such as a rollout that is no longer a multiple of its sequences
                    continue
                return found, Mutation(HYPERPARAMETER, name, before=start, after=value_at_start(changed))
        return None


def _numbers(config: Any) -> list[str]:
    """The fields that hold a positive number."""
    held = {f.name: value_at_start(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return [name for name, value in held.items() if type(value) in (int, float) and value > 0]


def value_at_start(value: Any) -> Any:
    """The value at the first step."""
    return value.start if isinstance(value, Linear) else value


def _stepped(value: Any, limits: tuple[float, float], step: float, rng: np.random.Generator) -> Any:
    """A hyperparameter after one step; the end of a schedule changes by the same factor."""
    low, high = limits
    factor = math.exp(rng.normal(0.0, step))
    if isinstance(value, Linear):
        start = min(max(value.start * factor, low), high)
        ratio = start / value.start
        then = tuple((at, later * ratio) for at, later in value.then)
        return dataclasses.replace(value, start=start, end=value.end * ratio, then=then)
    if isinstance(value, int):
        return int(min(max(math.floor(value * factor + rng.random()), math.ceil(low)), math.floor(high)))
    return float(min(max(value * factor, low), high))


def _taken(config: Any, path: tuple[str, ...], spec: Any) -> Any | None:
    """The config with this spec; None where its own checks refuse it."""
    try:
        return replaced(config, path, spec)
    except ConfigError:
        return None


def _shuffled(items: list[Any], rng: np.random.Generator) -> list[Any]:
    return [items[i] for i in rng.permutation(len(items))]
