"""Networks with variables in them: what `make` gives to an agent's `build`.

An engine brings two functions, one that turns an array into a variable of its framework and one that wraps a module that
a user wrote; everything else about networks is the same on every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from etude.errors import ConfigError, NetworkError
from etude.networks.architecture import Architecture
from etude.networks.normaliser import normalise, normalised_paths
from etude.networks.specs import Conv, Mlp, Spec
from etude.spaces import Space
from etude.trees import Tree

MakeVariable = Callable[[np.ndarray, bool], Any]  # (initial value, trainable) -> the framework's variable
ModuleFactory = Callable[[], Any]  # returns a torch.nn.Module or a keras.Model


class Lag(NamedTuple):
    """How a lagged copy follows its source: exactly one of the two is set."""

    source: Part
    every: str | None  # the config field that holds how many gradient steps lie between two copies
    tau: str | None  # the config field that holds the rate of an exponential average: w += tau * (source - w)


class Part:
    """A component of an agent that has variables."""

    variables: dict[str, Any]
    trainable: bool = True
    portable: bool = True  # whether NumPy can compute it quickly enough to act
    lag: Lag | None = None

    def __call__(self, observation: Tree) -> Any:
        raise NotImplementedError

    def twin(self) -> Part:
        """The same function with variables of its own, which start equal and are not trained."""
        raise NotImplementedError


class Network(Part):
    """An architecture and its variables."""

    def __init__(self, architecture: Architecture, initial: dict[str, np.ndarray], make_variable: MakeVariable):
        self.architecture, self._initial, self._make_variable = architecture, initial, make_variable
        self.variables = {name: make_variable(value, True) for name, value in initial.items()}
        self.portable = not isinstance(architecture.spec, Conv)

    def __call__(self, observation: Tree) -> Any:
        return self.architecture(self.variables, observation)

    def twin(self) -> Network:
        copy = Network(self.architecture, self._initial, lambda value, _: self._make_variable(value, False))
        copy.trainable = False
        return copy


class Scalar(Part):
    """One trained number, such as the logarithm of a temperature."""

    def __init__(self, value: float, make_variable: MakeVariable):
        self.variables = {"value": make_variable(np.float32(value).reshape(()), True)}

    def __call__(self, observation: Tree = None) -> Any:
        return self.variables["value"] * 1.0


class Vector(Part):
    """Trained numbers that do not depend on the observation, such as the log standard deviations of a policy."""

    def __init__(self, values: np.ndarray, make_variable: MakeVariable):
        self.variables = {"value": make_variable(np.asarray(values, np.float32), True)}

    def __call__(self, observation: Tree = None) -> Any:
        return self.variables["value"] * 1.0


class Normaliser(Part):
    """Centres and scales observations by moments that the run keeps up to date (`RunningMoments.values`)."""

    trainable = False

    def __init__(self, space: Space, on: bool, make_variable: MakeVariable):
        self.space, self.on = space, on
        self.paths = normalised_paths(space) if on else []
        self.variables = {}
        for name, path in self.paths:
            part = space
            for key in path:
                part = part[key]  # type: ignore[index]
            self.variables[f"{name}.mean"] = make_variable(np.zeros(part.shape, np.float32), False)
            self.variables[f"{name}.scale"] = make_variable(np.ones(part.shape, np.float32), False)

    def __call__(self, observation: Tree) -> Tree:
        return normalise(self.variables, self.paths, observation) if self.on else observation


class Maker:
    """Makes the parts of one agent for one engine; handed to `Agent.build` as `make`."""

    def __init__(
        self,
        make_variable: MakeVariable,
        wrap_module: Callable[[ModuleFactory, Space, int], Part],
        rng: np.random.Generator,
    ):
        self._make_variable, self._wrap_module, self._rng = make_variable, wrap_module, rng

    def __call__(
        self,
        spec: Spec | ModuleFactory,
        space: Space | tuple[Space, ...],
        outputs: int,
        members: int | None = None,
        gain: float = 1.0,
    ) -> Part:
        """A network from observations in `space` to [B, outputs] ([members, B, outputs] where members is given).

        spec: a spec, or a function without arguments that returns a torch.nn.Module or keras.Model of your own.
        gain: factor on the initial weights of a spec's last layer.
        Raises NetworkError where a module of your own returns another shape.
        """
        joined = gym_spaces.Tuple(space) if isinstance(space, tuple) else space
        if isinstance(spec, Mlp | Conv):
            architecture = Architecture(spec, joined, outputs, members, gain)
            return Network(architecture, architecture.initial(self._rng), self._make_variable)
        if not callable(spec):
            raise ConfigError(
                f"network is {spec!r}; expected a spec such as Mlp((64, 64)), or a function that returns a torch.nn.Module "
                "or a keras.Model."
            )
        if members is not None:
            raise NetworkError(
                "This algorithm computes several networks of one kind together and needs a spec for them, such as "
                "Mlp((256, 256)); a module of your own can be given for the others."
            )
        return self._wrap_module(spec, joined, outputs)

    def scalar(self, value: float) -> Scalar:
        """One trained number."""
        return Scalar(value, self._make_variable)

    def vector(self, values: np.ndarray) -> Vector:
        """Trained numbers that do not depend on the observation."""
        return Vector(values, self._make_variable)

    def normaliser(self, space: Space, on: bool) -> Normaliser:
        """Normalisation of observations; does nothing where `on` is False."""
        return Normaliser(space, on, self._make_variable)


def lagged(part: Part, *, every: str | None = None, tau: str | None = None) -> Part:
    """A copy of a network that follows it: copied at every so many gradient steps, or as an exponential average.

    every, tau: the name of the config field that holds the number, so that it can change while a run goes on.
    """
    if (every is None) == (tau is None):
        raise ConfigError("lagged takes exactly one of every= and tau=, each the name of a config field.")
    copy = part.twin()
    copy.lag = Lag(part, every, tau)
    return copy
