"""Optimizers as data, the field `optimizer` of every config. Their arithmetic is in `engines.optimizers`, the same on
every engine. The learning rate is a field of the config itself, because it may change while a run goes on.

Each keeps vectors as long as the gradient: `averages` names those of any sign, `squares` those that are never
negative. All begin at 0. In the formulas w are weights, g their gradient, t the update, from 1, and rate the learning
rate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from etude.base import checks
from etude.base.errors import ConfigError


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, arXiv:1412.6980, Algorithm 1: `w -= rate * m / (1 - b1**t) / (sqrt(v / (1 - b2**t)) +
    epsilon)`.

    The same on every engine. (Keras' own Adam adds epsilon before the bias correction, torch's after it; for
    epsilon = 1e-5 and early steps the two differ by tens of per cent.)
    """

    beta1: float = 0.9  # decay of the running mean of gradients
    beta2: float = 0.999  # decay of the running mean of their squares
    epsilon: float = 1e-8  # added to the root of that mean

    def __post_init__(self) -> None:
        checks.declared(self)
        _below_one(self, "beta1", "beta2")
        checks.positive(self, "epsilon")

    @property
    def averages(self) -> tuple[str, ...]:
        return ("first",)

    @property
    def squares(self) -> tuple[str, ...]:
        return ("second",)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: `w -= rate * weight_decay * w` beside Adam's update. Loshchilov & Hutter 2019,
    arXiv:1711.05101, Algorithm 2, with the learning rate as the factor of both, as in torch and Keras."""

    weight_decay: float = 0.01  # of the weights themselves, per unit of learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "weight_decay")


@dataclass(frozen=True)
class RMSProp:
    """`v = decay * v + (1 - decay) * g**2`, `w -= rate * g / sqrt(v + epsilon)`. Mnih et al. 2016, arXiv:1602.01783,
    section 4.

    Centered: m is the running mean of g, and `v - m**2` takes the place of v. Graves 2013, arXiv:1308.0850, equations
    38 to 40. Keras and TensorFlow also add epsilon inside the root, torch outside of it: an epsilon of torch's
    corresponds to its square here.
    """

    decay: float = 0.99  # of the running means
    epsilon: float = 1e-5  # added under the root
    centered: bool = False  # divide by the standard deviation of gradients, not by their root mean square

    def __post_init__(self) -> None:
        checks.declared(self)
        _below_one(self, "decay")
        checks.positive(self, "epsilon")

    @property
    def averages(self) -> tuple[str, ...]:
        return ("mean",) if self.centered else ()

    @property
    def squares(self) -> tuple[str, ...]:
        return ("square",)


@dataclass(frozen=True)
class SGD:
    """`w -= rate * g`; with momentum `b = momentum * b + g`, `w -= rate * b`, and with Nesterov's
    `w -= rate * (g + momentum * b)`. Sutskever et al. 2013, "On the importance of initialization and momentum in deep
    learning", with the learning rate outside of b, as in torch: b does not depend on it."""

    momentum: float = 0.0  # decay of the running sum of gradients; 0: none
    nesterov: bool = False  # look ahead along the momentum

    def __post_init__(self) -> None:
        checks.declared(self)
        _below_one(self, "momentum")
        if self.nesterov and not self.momentum:
            raise ConfigError("SGD: nesterov = True, momentum = 0; expected a momentum above 0, such as 0.9.")

    @property
    def averages(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    @property
    def squares(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Lion:
    """`w -= rate * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)`, `m = beta2 * m + (1 - beta2) * g`. Chen et
    al. 2023, arXiv:2302.06675, Algorithm 2. Its learning rate is 3 to 10 times smaller than Adam's."""

    beta1: float = 0.9  # weight of the running mean in the update
    beta2: float = 0.99  # decay of the running mean
    weight_decay: float = 0.0  # of the weights themselves, per unit of learning rate

    def __post_init__(self) -> None:
        checks.declared(self)
        _below_one(self, "beta1", "beta2")
        checks.not_negative(self, "weight_decay")

    @property
    def averages(self) -> tuple[str, ...]:
        return ("mean",)

    @property
    def squares(self) -> tuple[str, ...]:
        return ()


Optimizer = Adam | AdamW | RMSProp | SGD | Lion
OPTIMIZERS: dict[str, type] = {kind.__name__.lower(): kind for kind in get_args(Optimizer)}
PREFIX = "optimizer."  # before the name of a setting, where other hyperparameters of a config are named too
_ADJUSTABLE = ("beta1", "beta2", "weight_decay")


def adjustable_settings(settings: Optimizer) -> tuple[str, ...]:
    """The settings that rules may change while a run goes on: `optimizer.beta1` and others."""
    return tuple(f"{PREFIX}{name}" for name in _ADJUSTABLE if name in vars(settings))


def with_settings(settings: Optimizer, values: Mapping[str, Any]) -> Optimizer:
    """An optimizer with these values, by names such as `optimizer.beta1`, which may be traced scalars."""
    if not values:
        return settings
    changed = copy.copy(settings)  # not dataclasses.replace: the checks are for numbers
    for name, value in values.items():
        object.__setattr__(changed, name.removeprefix(PREFIX), value)
    return changed


def check_optimizer(config: str, given: object) -> None:
    """Raise ConfigError for what is no optimizer. config: the name of the class of the config that holds it."""
    if not isinstance(given, Optimizer):
        names = ", ".join(f"{kind.__name__}()" for kind in OPTIMIZERS.values())
        raise ConfigError(
            f"{config}: optimizer = {given!r}; expected one of etude.optimizers: {names}. The learning rate is the "
            "field learning_rate."
        )


def _below_one(settings: object, *fields: str) -> None:
    """Raise ConfigError for what is not in [0, 1)."""
    checks.fractions(settings, *fields)
    if any(getattr(settings, field) == 1 for field in fields):
        shown = ", ".join(f"{field} = {getattr(settings, field)}" for field in fields)
        raise ConfigError(f"{type(settings).__name__}: {shown}; expected numbers below 1.")
