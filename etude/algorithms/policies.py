"""Stochastic policies: their networks, and the distributions over actions that these parametrise."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, Discrete, Hybrid, MultiBinary, MultiDiscrete, Spaces, describe
from etude.base.trees import Tree
from etude.losses.distributions import (
    UNMASKED,
    Deterministic,
    Gaussian,
    NumbersAndChoices,
    StateDependentGaussian,
    TanhGaussian,
    of_choices,
    state_dependent,
)
from etude.networks import Maker, Mlp, Part, Spec
from etude.networks.encoding import width

LOG_STD = (-5.0, 2.0)  # bounds on the log deviations of a BoundedPolicy and of the components of a mixture


class Policy:
    """A distribution over the actions of some spaces: `Categorical`, `MultiCategorical`, `Bernoullis`, for Box actions
    a `Gaussian` whose deviations do not depend on the observation, or `NumbersAndChoices`. Forbidden actions have
    probability 0."""

    actions: ClassVar[tuple[type[Any], ...]] = (
        Discrete,
        MultiDiscrete,
        MultiBinary,
        Box,
        Hybrid,
    )  # action spaces with a distribution
    gain: ClassVar[float] = 0.01  # factor on the initial weights of the network's last layer
    outputs: int  # numbers that the network computes

    def __init__(self, spaces: Spaces):
        self.spaces = spaces
        self.outputs = width(spaces.action)

    def make(self, make: Maker, spec: Spec, initial_log_std: float | None = 0.0) -> dict[str, Part]:
        """The parts that `__call__` takes: `policy`, and for Box actions `log_std`.

        initial_log_std: where log deviations start, in the range [-1, 1] of the actions that an agent sees; None: there
        are none, for a `BoundedPolicy`.
        """
        network = make(spec, self.spaces.observation, outputs=self.outputs, gain=self.gain)
        return self.around(network, make, initial_log_std)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        """The same parts for a network that was made otherwise."""
        action = self.spaces.action
        if isinstance(action, Box) and initial_log_std is not None:
            numbers = width(action.numbers if isinstance(action, Hybrid) else action)
            return {"policy": network, "log_std": make.free(np.full(numbers, initial_log_std))}
        return {"policy": network}

    def __call__(self, parts: dict[str, Part], observation: Tree, seen: Tree) -> Any:
        """The distribution [N] for observations [N, ...]; `seen`: as the network is to see them, normalised."""
        return self.of(parts, observation, parts["policy"](seen))

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Any:
        """The distribution [*batch] that outputs x of the network [*batch, outputs] stand for."""
        action, mask = self.spaces.action, observation[ACTION_MASK] if self.spaces.masked else UNMASKED
        if isinstance(action, Hybrid):
            numbers = width(action.numbers)
            choices = of_choices(action.choices, x[..., numbers:], mask)
            return NumbersAndChoices(self._of_box(x[..., :numbers], parts), choices)
        return self._of_box(x, parts) if isinstance(action, Box) else of_choices(action, x, mask)

    def _of_box(self, x: Any, parts: dict[str, Part]) -> Any:
        return Gaussian(x, x * 0.0 + parts["log_std"]())


class BoundedPolicy(Policy):
    """A policy whose mean Box action is tanh of the network's output, in [-1, 1], and whose standard deviations are
    bounded: for learning from recorded actions, or other exploration. `Deterministic` without a part `log_std`.
    """

    def _of_box(self, x: Any, parts: dict[str, Part]) -> Any:
        mean = ops.tanh(x)
        if "log_std" not in parts:
            return Deterministic(mean)
        return Gaussian(mean, mean * 0.0 + ops.clip(parts["log_std"](), *LOG_STD))


class ClippedPolicy(BoundedPolicy):
    """A policy whose Box action is the network's output, clipped to [-1, 1]; the output is 0 at first."""

    gain: ClassVar[float] = 0.0

    def _of_box(self, x: Any, parts: dict[str, Part]) -> Any:
        return Deterministic(ops.clip(x, -1.0, 1.0))


class StateDependentPolicy(Policy):
    """A policy over Box actions whose exploration noise is a function of the state (gSDE): the mean and the noise are
    both linear in the last hidden layer of the network. ConfigError for other actions.

    kind: the distribution. learn_features: whether gradients flow through the noise into the features.
    """

    def __init__(
        self, spaces: Spaces, kind: type[Gaussian] | type[TanhGaussian] = Gaussian, learn_features: bool = False
    ):
        if type(spaces.action) is not Box:
            raise ConfigError(
                f"gsde = True adds noise to Box actions; this environment has {describe(spaces.action)}. Leave it off."
            )
        super().__init__(spaces)
        self._kind, self._learn_features = kind, learn_features

    def make(self, make: Maker, spec: Any, initial_log_std: float | None = 0.0, gain: float = 0.01) -> dict[str, Part]:
        """The parts `features`, `mean` and `log_std`.

        initial_log_std: of the noise where the features have a mean square of 1. gain: on the first weights of `mean`.
        """
        features = make.features(spec, self.spaces.observation)
        hidden = features.architecture.outputs
        head = Mlp((), spec.activation, spec.initializer)
        start = (initial_log_std or 0.0) - 0.5 * math.log(hidden)
        return {
            "features": features,
            "mean": make(head, Box(-np.inf, np.inf, (hidden,), np.float32), self.outputs, gain=gain),
            "log_std": make.free(np.full((self.outputs, hidden), start)),
        }

    def __call__(self, parts: dict[str, Part], observation: Tree, seen: Tree) -> StateDependentGaussian:
        features = parts["features"](seen)
        scaling = features if self._learn_features else ops.stop_gradient(features)
        return state_dependent(self._kind, parts["mean"](features), scaling, parts["log_std"]())
