"""What an agent of one object holds in Keras: variables by name, and the layers of its networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from etude.base.errors import ConfigError
from etude.engines.solo_object import each, find, single
from etude.engines.solo_param import flat
from etude.networks.dense import Activation, Affine, Flatten, Layer
from etude.protocols import Weights

_KINDS = (keras.Variable, keras.layers.Layer, keras.random.SeedGenerator)
_ACTIVATIONS = {"relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "softmax", "log_softmax"}
_NOTHING = (keras.layers.InputLayer, keras.layers.Dropout)  # what does nothing when a network is evaluated


def check_backend() -> str:
    """ "jax" or "tensorflow"; ConfigError where Keras runs on anything else."""
    backend = keras.backend.backend()
    if backend in ("jax", "tensorflow"):
        return backend
    raise ConfigError(
        f"Keras runs on {backend} in this process; an agent in Keras needs jax or tensorflow. Set KERAS_BACKEND=jax "
        "before keras is imported, or write the agent in PyTorch with etude.RL_pytorch."
    )


class KerasVariables:
    """The variables that an agent's attributes hold. They are the user's own: their values are read and written in
    place."""

    def __init__(self, agent: Any):
        self.agent = agent
        self.discover()

    def discover(self) -> None:
        """Find the variables: again where layers have been built since."""
        found = find(self.agent, _KINDS)
        self._layers = [holder for holder in found.values() if isinstance(holder, keras.layers.Layer)]
        self.variables: dict[str, Any] = {}
        self.named: dict[int, str] = {}  # names by identity
        for path, holder in found.items():
            for name, variable in _variables(path, holder):
                if self.named.setdefault(id(variable), name) == name:
                    self.variables[name] = variable

    @property
    def names(self) -> tuple[str, ...]:
        """Of all variables."""
        return tuple(self.variables)

    @property
    def trained(self) -> tuple[str, ...]:
        """Of those in `param`."""
        return tuple(dict.fromkeys(self.named[id(variable)] for variable in flat(self.agent.param, keras.Variable)))

    def build(self, call: Callable[[], Any]) -> bool:
        """Run code of the agent once where there are layers that make their variables when they are first called.
        Returns whether variables were added; generators of random numbers stay where they were."""
        if all(layer.built for layer in self._layers):
            return False
        before = self.read(self.variables)
        call()
        self.write(before)
        self.discover()
        return len(self.variables) > len(before)

    def read(self, names: Iterable[str]) -> Weights:
        """The values of these variables."""
        return {name: value_of(self.variables[name]) for name in names}

    def write(self, weights: Weights) -> None:
        """Give variables these values."""
        for name, value in weights.items():
            self.variables[name].assign(value)

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that has dense layers and activations only, in the order it lists them."""
        pending = list(self._layers)
        chains, seen = [], set()
        while pending:
            network = pending.pop(0)
            if id(network) not in seen:
                seen.add(id(network))
                chains.append(self._chain(network))
                pending += [layer for _, layer in find(network, (keras.Model,)).items()]
        return [tuple(chain) for chain in chains if chain]

    def _chain(self, layer: Any) -> list[Layer] | None:
        if isinstance(layer, keras.Model):
            parts = [self._chain(part) for part in layer.layers]
            return None if None in parts else [one for part in parts for one in part or ()]
        if isinstance(layer, _NOTHING):
            return []
        if isinstance(layer, keras.layers.Flatten):
            return [Flatten()]
        name = _activation(layer)
        if name is None or (isinstance(layer, keras.layers.Dense) and not layer.built):
            return None
        after: list[Layer] = [] if name == "linear" else [Activation(name)]
        if not isinstance(layer, keras.layers.Dense):
            return after
        kernel = self.named.get(id(layer.kernel))  # None where it is computed from several variables
        bias = None if layer.bias is None else self.named[id(layer.bias)]
        return None if kernel is None else [Affine(kernel, bias), *after]


def _activation(layer: Any) -> str | None:
    """The name of a layer's activation; None for other layers, and for functions that NumPy has no name for."""
    if isinstance(layer, keras.layers.Dense | keras.layers.Activation):
        name = getattr(layer.activation, "__name__", None)
        return name if name in _ACTIVATIONS | {"linear"} else None
    kinds = {keras.layers.ReLU: "relu", keras.layers.ELU: "elu", keras.layers.Softmax: "softmax"}
    return kinds.get(type(layer))  # odd settings of theirs show when the chain is compared with the network


def _variables(path: str, holder: Any) -> list[tuple[str, Any]]:
    if isinstance(holder, keras.Variable):
        return [(path, holder)]
    if isinstance(holder, keras.random.SeedGenerator):
        return [(f"{path}.state", holder.state)]
    return [(f"{path}.{i}.{variable.name}", variable) for i, variable in enumerate(holder.variables)]


def value_of(variable: Any) -> np.ndarray:
    """The value of a variable of Keras, in NumPy."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def tensors(tree: Any) -> Any:
    """NumPy arrays as those of the framework."""
    return each(lambda x: keras.ops.convert_to_tensor(single(x)), tree)
