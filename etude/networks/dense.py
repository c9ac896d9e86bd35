"""Networks of dense layers that an agent of one's own holds, in NumPy: what pool workers act with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.errors import NetworkError
from etude.base.trees import Tree
from etude.ops.blas import one_thread
from etude.protocols import Weights


@dataclass(frozen=True)
class Affine:
    """x @ kernel + bias, for weights of these names.

    transposed: whether the kernel is kept as [outputs, inputs], as torch does.
    """

    kernel: str
    bias: str | None = None
    transposed: bool = False


@dataclass(frozen=True)
class Activation:
    """An elementwise function, or softmax over the last axis; a name in ACTIVATIONS."""

    name: str


@dataclass(frozen=True)
class Flatten:
    """[N, ...] -> [N, everything]."""


Layer = Affine | Activation | Flatten


class DenseActor:
    """Evaluates a chain of layers, in plain NumPy.

    weights: by the names that the layers use. present: what the first layer gets of an observation; picklable.
    """

    state_size = 0

    def __init__(self, layers: Sequence[Layer], weights: Weights, present: Callable[[Tree], Any]):
        self.layers: tuple[Layer, ...] = tuple(layers)
        self._present = present
        affine = [layer for layer in self.layers if isinstance(layer, Affine)]
        self.names: tuple[str, ...] = tuple(
            name for layer in affine for name in (layer.kernel, layer.bias) if name is not None
        )
        self._weights = {name: np.array(weights[name], np.float32) for name in self.names}
        self._largest = max(map(np.size, self._weights.values()), default=0)  # how many numbers one weight has
        self._prepared = self._prepare()

    def act(self, observation: Tree) -> np.ndarray:
        """What the chain makes of observations [N, ...]: [N, outputs] float32. A row's bits do not depend on N."""
        x = self._present(observation)
        if x.dtype != np.float32:
            x = x.astype(np.float32)
        with one_thread(self._largest):
            for layer in self._prepared:
                x = layer(x) if callable(layer) else ops.affine(x, *layer)
        return x

    def weights(self) -> Weights:
        """The weights by name."""
        return dict(self._weights)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        for name, value in weights.items():
            if name not in self._weights:
                raise NetworkError(
                    f"There is no weight named {name!r} in the exported network; it has {', '.join(self.names)}."
                )
            if np.shape(value) != self._weights[name].shape:
                raise NetworkError(
                    f"Weight {name!r} has shape {np.shape(value)}; the network's has {self._weights[name].shape}."
                )
        self._weights |= {name: np.array(value, np.float32) for name, value in weights.items()}
        self._prepared = self._prepare()

    def _prepare(self) -> list[Any]:
        """For each layer a function, or (kernel [inputs, outputs], bias)."""
        return [self._prepare_layer(layer) for layer in self.layers]

    def _prepare_layer(self, layer: Layer) -> Any:
        if isinstance(layer, Activation):
            return ACTIVATIONS[layer.name]
        if isinstance(layer, Flatten):
            return _flatten
        kernel = self._weights[layer.kernel]
        kernel = np.ascontiguousarray(kernel.T) if layer.transposed else kernel
        bias = np.zeros(kernel.shape[1], np.float32) if layer.bias is None else self._weights[layer.bias]
        return kernel, bias


def _flatten(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), math.prod(x.shape[1:]))


def _gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function; its error function by Abramowitz & Stegun 1964, 7.1.26 (within
    1.5e-7). Hendrycks & Gimpel 2016, arXiv:1606.08415."""
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(coefficient)) * t
    error = np.sign(x) * (1 - series * np.exp(-z * z))
    return np.float32(0.5) * x * (1 + error)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": ops.relu, "tanh": ops.tanh, "sigmoid": ops.sigmoid, "elu": ops.elu, "gelu": _gelu, "gelu_tanh": ops.gelu,
    "silu": ops.silu, "softplus": ops.softplus, "softmax": ops.softmax, "log_softmax": ops.log_softmax,
}  # fmt: skip
