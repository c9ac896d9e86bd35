"""What a spec means for one space and one number of outputs: the parameters it needs, and the function it computes.

Written once over `ops`, so that every engine computes the same function from the same named parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.errors import NetworkError
from etude.networks.encoding import at, split, to_vector, width
from etude.networks.specs import Conv, Mlp
from etude.spaces import Space, describe
from etude.trees import Tree

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": ops.relu,
    "tanh": ops.tanh,
    "elu": ops.elu,
    "gelu": ops.gelu,
    "silu": ops.silu,
}


class Parameter(NamedTuple):
    """One array of a network and how it starts."""

    shape: tuple[int, ...]
    initializer: str  # fan_in, orthogonal, zeros, or forget: 1 in the second quarter (of the gates of an LSTM), else 0
    fan_in: int
    gain: float


class Architecture:
    """A spec on a space: parameter shapes and the forward pass.

    outputs: width of the last layer; None for features: there is no such layer, and hidden ones are the last.
    members: None, or how many networks of this kind are computed together in one matrix product, with outputs
        [members, B, outputs].
    gain: factor on the initial weights of the last layer.
    prefix: what the names of the parameters begin with.
    """

    def __init__(
        self,
        spec: Mlp | Conv,
        space: Space,
        outputs: int | None,
        members: int | None = None,
        gain: float = 1.0,
        prefix: str = "",
    ):
        self.spec, self.space, self.members, self._prefix = spec, space, members, prefix
        self.parameters: dict[str, Parameter] = {}
        self._activation = _ACTIVATIONS[spec.activation]
        vectors, images = split(space)
        self._vectors = [(path, to_vector(part)) for path, part in vectors]
        self._images = [(path, self._add_convolutions(i, part)) for i, (path, part) in enumerate(images)]
        inputs = sum(width(part) for _, part in vectors) + sum(size for _, (_, size) in self._images)
        self._layers = []
        self._hidden = len(spec.widths)  # layers that an activation follows
        for i, units in enumerate(spec.widths if outputs is None else (*spec.widths, outputs)):
            self._layers.append(self._add_dense(i, inputs, units, None if i < self._hidden else gain))
            inputs = units
        self.outputs = inputs

    def _add(self, name: str, shape: tuple[int, ...], fan_in: int, gain: float | None) -> str:
        bias = name.endswith("bias")
        orthogonal = self.spec.initializer == "orthogonal"
        initializer = ("zeros" if bias else "orthogonal") if orthogonal else "fan_in"
        scale = (2**0.5 if orthogonal else 1.0) if gain is None else gain
        name = self._prefix + name
        self.parameters[name] = Parameter(shape, initializer, fan_in, scale)
        return name

    def _add_dense(self, i: int, inputs: int, units: int, gain: float | None) -> tuple[str, str]:
        stack = () if self.members is None else (self.members,)
        bias_shape = (units,) if self.members is None else (self.members, 1, units)
        weight = self._add(f"dense{i}.weight", (*stack, inputs, units), inputs, gain)
        return weight, self._add(f"dense{i}.bias", bias_shape, inputs, gain)

    def _add_convolutions(self, image: int, space: Space) -> tuple[list[tuple[str, str, int]], int]:
        if not isinstance(self.spec, Conv):
            raise NetworkError(
                f"An Mlp cannot read the image in {describe(self.space)}. Give the config network=Conv(), or flatten "
                "the image with gymnasium.wrappers.FlattenObservation."
            )
        height, wide, channels = space.shape  # type: ignore[misc]
        layers = []
        for i, (filters, kernel, stride) in enumerate(self.spec.filters):
            height, wide = (height - kernel) // stride + 1, (wide - kernel) // stride + 1
            if height < 1 or wide < 1:
                raise NetworkError(
                    f"The image {space.shape} is too small for the convolutions {self.spec.filters}: nothing is left "
                    f"after number {i + 1}. Give Conv fewer or smaller filters."
                )
            fan_in = kernel * kernel * channels
            name = f"image{image}.conv{i}"
            weight = self._add(f"{name}.weight", (kernel, kernel, channels, filters), fan_in, None)
            layers.append((weight, self._add(f"{name}.bias", (filters,), fan_in, None), stride))
            channels = filters
        return layers, height * wide * channels

    def __call__(self, values: Mapping[str, Any], observation: Tree) -> Any:
        """[B, outputs], or [members, B, outputs], for a batch of observations [B, ...] and parameters by name."""
        x = self._features(values, observation)
        for i, (weight, bias) in enumerate(self._layers):
            x = ops.affine(x, values[weight], values[bias])
            if i < self._hidden:
                x = self._activation(x)
        return x

    def _features(self, values: Mapping[str, Any], observation: Tree) -> Any:
        features = [convert(at(observation, path)) for path, convert in self._vectors]
        for path, (layers, size) in self._images:
            x = ops.cast(at(observation, path), "float32") / 255.0
            for weight, bias, stride in layers:
                x = self._activation(ops.conv(x, values[weight], stride) + values[bias])
            features.append(ops.reshape(x, (-1, size)))
        return features[0] if len(features) == 1 else ops.concatenate(features, -1)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values by name, float32."""
        return draw_all(self.parameters, rng)


def draw_all(parameters: Mapping[str, Parameter], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Initial values by name, float32."""
    return {name: _draw(parameter, rng) for name, parameter in parameters.items()}


def _draw(parameter: Parameter, rng: np.random.Generator) -> np.ndarray:
    shape, initializer, fan_in, gain = parameter
    if initializer == "zeros":
        return np.zeros(shape, np.float32)
    if initializer == "forget":
        return np.repeat(np.array([0.0, 1.0, 0.0, 0.0], np.float32), shape[0] // 4)
    if initializer == "fan_in":
        limit = gain / np.sqrt(fan_in)
        return rng.uniform(-limit, limit, shape).astype(np.float32)
    stack = shape[:-2] if len(shape) == 3 else ()
    matrices = [_orthogonal(fan_in, shape[-1], rng) for _ in range(int(np.prod(stack, dtype=int)))]
    return (gain * np.reshape(np.stack(matrices), shape)).astype(np.float32)


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Saxe et al. 2014, arXiv:1312.6120: orthonormal rows or columns, whichever are fewer."""
    normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
