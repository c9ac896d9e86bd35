"""What a spec means for one space and one number of outputs: the parameters it needs, and the function it computes.

Written once over `ops`, so that every engine computes the same function from the same named parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Space, describe
from etude.base.trees import Tree
from etude.networks.encoding import Image, at, leaves, split, to_vector, width
from etude.networks.layers import (
    DROPOUT,
    DROPOUT_OF_UNITS,
    Convolution,
    Dense,
    LayerUnits,
    Noisy,
    Norm,
    Parameter,
    Record,
    Renorm,
    convolved,
    dropped,
    flattened,
    largest_singular_value,
    noisy,
    normalised,
    observed,
    renormalised,
    unit,
)
from etude.networks.specs import Conv, Mlp, SimBa, SimBaV2, filters_for

ACTIVATION_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    name: getattr(ops, name) for name in ("relu", "tanh", "elu", "gelu", "silu")
}
SMALL = 1e-8  # added to what is scaled to norm 1, where all of it may be 0
_RENORM_STARTS = ("ones", "zeros", "zeros", "ones", "zeros")


class Architecture:
    """A spec on a space: parameter shapes and the forward pass.

    outputs: width of the last layer; (actions,) or (actions, numbers) for values of actions, which may be dueling; None
        for features: there is no such layer, and hidden ones are the last.
    members: None, or how many networks of this kind are computed together in one matrix product, with outputs
        [members, B, outputs].
    gain: factor on the initial weights of the last layer.
    prefix: what the names of the parameters begin with.

    noise: the parameters that are standard normal noise while a policy is explored or trained, and 0 otherwise.
    dropout: how many units may be dropped, those of all members counted; see `layers.dropped`.
    statistics: the parameters that move at each forward pass of training; see `layers.renormalised`.
    projected: the weights whose columns are scaled to norm 1 after each gradient step.
    portable: whether NumPy can compute it quickly enough to act.
    """

    def __init__(
        self,
        spec: Mlp | Conv,
        space: Space,
        outputs: int | tuple[int, ...] | None,
        members: int | None = None,
        gain: float = 1.0,
        prefix: str = "",
    ):
        self.spec: Mlp | Conv = spec
        self.space: Space = space
        self.members: int | None = members
        self._prefix = prefix
        self.parameters: dict[str, Parameter] = {}
        self.noise: dict[str, tuple[int, ...]] = {}
        self.dropout: int = 0
        self.statistics: tuple[str, ...] = ()
        self.projected: tuple[str, ...] = ()
        self.portable: bool = not isinstance(spec, Conv)
        self._activation = ACTIVATION_FUNCTIONS[spec.activation]
        vectors, images = split(space, True) if isinstance(spec, Conv) else (leaves(space), [])
        self._vector_spaces = vectors
        self._record: Record | None = None
        self._vectors = [(path, to_vector(part)) for path, part in vectors]
        read = [(path, Image.of(part)) for path, part in images]  # type: ignore[arg-type]
        self._images = [(path, image, *self._add_convolutions(i, image)) for i, (path, image) in enumerate(read)]
        inputs = sum(width(part) for _, part in vectors) + sum(size for *_, size in self._images)
        self._heads: list[list[Dense]] = []
        self._add_layers(inputs, outputs, gain)

    def _add_layers(self, inputs: int, outputs: int | tuple[int, ...] | None, gain: float) -> None:
        widths = self.spec.widths
        if not self.spec.dueling:
            self._trunk, inputs = self._add_chain("", inputs, widths, 0)
            self.shape = outputs if isinstance(outputs, tuple) else (inputs if outputs is None else outputs,)
            self.outputs: int = math.prod(self.shape)
            if outputs is not None:
                self._heads.append(self._add_chain("", inputs, (self.outputs,), len(widths), gain)[0])
            return
        if not isinstance(outputs, tuple):
            raise ConfigError(
                f"{type(self.spec).__name__}: dueling=True splits values of actions, which dqn, c51, qr_dqn and "
                "rainbow learn; this network has other outputs. Leave dueling off."
            )
        *shared, last = widths
        self.outputs = math.prod(outputs)
        self.shape = outputs
        self._trunk, inputs = self._add_chain("", inputs, tuple(shared), 0)
        self._heads = [
            self._add_chain(f"{name}.", inputs, (last, units), len(shared), gain)[0]
            for name, units in (("value", math.prod(outputs[1:])), ("advantage", self.outputs))
        ]

    def _add(self, name: str, shape: tuple[int, ...], fan_in: int, gain: float | None) -> str:
        bias = name.endswith("bias")
        orthogonal = self.spec.initializer == "orthogonal"
        initializer = ("zeros" if bias else "orthogonal") if orthogonal else "fan_in"
        scale = (2**0.5 if orthogonal else 1.0) if gain is None else gain
        name = self._prefix + name
        self.parameters[name] = Parameter(shape, initializer, fan_in, scale)
        return name

    def _add_chain(
        self, prefix: str, inputs: int, widths: tuple[int, ...], first: int, gain: float | None = None
    ) -> tuple[list[Dense], int]:
        """Dense layers one after the other, numbered from `first`, and how many features come out of them. gain: of the
        last one, where that is an output layer; None: all are hidden ones."""
        layers = []
        for i, units in enumerate(widths):
            own = gain if i == len(widths) - 1 else None
            name = f"{prefix}dense{first + i}"
            stack = () if self.members is None else (self.members,)
            bias_shape = (units,) if self.members is None else (self.members, 1, units)
            shapes = {"weight": (*stack, inputs, units)} | ({"bias": bias_shape} if self.spec.bias else {})
            weight, *bias = (self._add(f"{name}.{part}", shape, inputs, own) for part, shape in shapes.items())
            if not self.spec.noisy:
                layer = Dense(weight, bias[0] if bias else None, None, name=self._prefix + name)
            else:
                noisy = Noisy(*(f"{name}.{part}" for part in ("weight_scale", "bias_scale", "noise_in", "noise_out")))
                for scale, shape in zip(noisy[:2], shapes.values(), strict=True):
                    self.parameters[scale] = Parameter(shape, "constant", inputs, self.spec.noisy)
                for noise, size in ((noisy.inputs, inputs), (noisy.units, units)):
                    self.noise[noise] = (*stack, size)
                    self.parameters[noise] = Parameter((*stack, size), "zeros", inputs, 0.0)
                layer = Dense(weight, bias[0], noisy, name=self._prefix + name)
            if self.spec.batch_renorm:
                layer = layer._replace(renorm=self._add_renorm(layer.name, inputs))
            if own is None:
                norm = self._add_norm(layer.name, units, first + i) if self.spec.layer_norm else None
                layer = layer._replace(norm=norm, skip=first + i in self.spec.skips)
                if self.spec.spectral_norm:
                    spectral = f"{layer.name}.spectral"
                    self.parameters[spectral] = Parameter(bias_shape, "fan_in", units, 1.0)
                    self.statistics += (spectral,)
                    layer = layer._replace(spectral=spectral)
                if self.spec.dropout:
                    start, self.dropout = self.dropout, self.dropout + units * (self.members or 1)
                    layer = layer._replace(dropout=(self.spec.dropout, start, self.dropout))
            layers.append(layer)
            inputs = inputs + units if layer.skip else units
        return layers, inputs

    def _add_norm(self, layer: str, units: int, number: int) -> Norm:
        shape = (units,) if self.members is None else (self.members, 1, units)
        groups = self.spec.norm_groups[number] if self.spec.norm_groups else ()
        norm = Norm(f"{layer}.norm_scale", f"{layer}.norm_bias", groups)
        for name, initializer in ((norm.scale, "ones"), (norm.bias, "zeros")):
            self.parameters[name] = Parameter(shape, initializer, units, 1.0)
        return norm

    def _add_renorm(self, layer: str, inputs: int) -> Renorm:
        stack = () if self.members is None else (self.members, 1)
        norm = Renorm(*(f"{layer}.renorm_{part}" for part in Renorm._fields))
        for name, size, initializer in zip(norm, (*[inputs] * 4, 1), _RENORM_STARTS, strict=True):
            self.parameters[name] = Parameter((*stack, size), initializer, inputs, 1.0)
        self.statistics += norm.statistics
        return norm

    def _add_convolutions(self, number: int, image: Image) -> tuple[list[Convolution], int]:
        assert isinstance(self.spec, Conv)
        height, wide, channels = image.height, image.width, image.channels
        layers = []
        for i, (filters, kernel, stride) in enumerate(self.spec.filters):
            padding = self.spec.padding[i] if self.spec.padding else 0
            height, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, wide))
            if height < 1 or wide < 1:
                raise NetworkError(
                    f"An image of {image.height} x {image.width} in {describe(self.space)} is too small for the "
                    f"convolutions {self.spec.filters}: nothing is left after number {i + 1}. Give Conv fewer or "
                    f"smaller filters, such as filters={filters_for(min(image.height, image.width))}."
                )
            fan_in = kernel * kernel * channels
            name, skip = f"image{number}.conv{i}", i in self.spec.filter_skips
            weight = self._add(f"{name}.weight", (kernel, kernel, channels, filters), fan_in, None)
            bias = self._add(f"{name}.bias", (filters,), fan_in, None)
            layers.append(Convolution(weight, bias, stride, padding, self._prefix + name, skip))
            channels = channels + filters if skip else filters
        return layers, height * wide * channels

    def __call__(self, values: Mapping[str, Any], observation: Tree, moved: dict[str, Any] | None = None) -> Any:
        """[B, *outputs], or [members, B, outputs], for a batch of observations [B, ...] and parameters by name.

        moved: takes the statistics after a forward pass of training; None: nothing is trained."""
        return self._dense(values, self._features(values, observation), moved)

    def for_each(self, values: Mapping[str, Any], observation: Tree) -> Any:
        """[B, *outputs] for observations [B, ...] and S sets of parameters, [S, ...] by name, each for B / S
        observations one after the other. Of vectors only."""
        stacked = {name: value if value.ndim == 3 else value[:, None] for name, value in values.items()}
        sets, x = len(next(iter(values.values()))), self._features(values, observation)
        outputs = self._dense(stacked, ops.reshape(x, (sets, -1, x.shape[-1])))
        return ops.reshape(outputs, (len(x), *self.shape))

    def _dense(self, values: Mapping[str, Any], x: Any, moved: dict[str, Any] | None = None) -> Any:
        for layer in self._trunk:
            x = self._layer(values, layer, x, moved)
        if not self._heads:
            return x
        outputs = []
        for *hidden, last in self._heads:
            y = x
            for layer in hidden:
                y = self._layer(values, layer, y, moved)
            outputs.append(self._layer(values, last, y, moved, hidden=False))
        if len(outputs) == 1:
            return outputs[0] if len(self.shape) == 1 else ops.reshape(outputs[0], (-1, *self.shape))
        value = ops.reshape(outputs[0], (-1, 1, *self.shape[1:]))
        advantage = ops.reshape(outputs[1], (-1, *self.shape))
        return value + advantage - ops.mean(advantage, 1, keepdims=True)

    def _layer(
        self, values: Mapping[str, Any], layer: Dense, x: Any, moved: dict[str, Any] | None = None, hidden: bool = True
    ) -> Any:
        """A dense layer; hidden: and its activation."""
        y = x if layer.renorm is None else renormalised(values, layer.renorm, x, moved)
        y = y if layer.spectral is None else y / largest_singular_value(values, layer, moved)
        if self._record is not None:
            self._record(layer.name, y)
        if layer.bias is None:
            y = ops.matmul(y, values[layer.weight])
        elif layer.noisy is None:
            y = ops.affine(y, values[layer.weight], values[layer.bias])
        else:
            y = ops.affine(y, *noisy(values, layer.noisy, values[layer.weight], values[layer.bias]))
        if layer.dropout is not None and DROPOUT in values:
            y = dropped(values[DROPOUT], values[DROPOUT_OF_UNITS], layer.dropout, y)
        y = y if layer.norm is None else normalised(values, layer.norm, y)
        if not hidden:
            return y
        y = self._activation(y)
        return ops.concatenate([x, y], -1) if layer.skip else y

    def _features(self, values: Mapping[str, Any], observation: Tree) -> Any:
        features = [convert(at(observation, path) if path else observation) for path, convert in self._vectors]
        for path, image, layers, size in self._images:
            x = image(at(observation, path))
            for layer in layers:
                if self._record is not None:
                    self._record(layer.name, x)
                y = self._activation(convolved(values, layer, x))
                x = ops.concatenate([x, y], -1) if layer.skip else y
            features.append(ops.reshape(x, (-1, size)))
        return features[0] if len(features) == 1 else ops.concatenate(features, -1)

    def recording(self, record: Record) -> Architecture:
        """The same, which calls `record(name, inputs)` at every layer."""
        recording = copy.copy(self)
        recording._record = record
        return recording

    def layer_units(self) -> dict[str, LayerUnits]:
        """What the axes of the parameters of each layer count, by the name of the layer, from input to output."""
        dense = [*self._trunk, *(layer for head in self._heads for layer in head)]
        convolutions = [layer for *_, layers, _ in self._images for layer in layers]
        layers: list[Convolution | Dense] = [*convolutions, *dense]
        return {layer.name: LayerUnits.of(layer, self.parameters) for layer in layers}

    def input_labels(
        self, labels: Mapping[str, np.ndarray], observation: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Labels of the inputs of each layer, by its name, and of the features that come out, by the prefix.

        labels: of the units of each layer. observation: of vectors; None: those of `observed`.
        """
        found: dict[str, np.ndarray] = {}
        vectors = sum(width(part) for _, part in self._vector_spaces)
        features = [observed(0, vectors) if observation is None else observation]
        for number, (_, image, layers, size) in enumerate(self._images):
            x = observed(number + 1, image.channels)
            for layer in layers:
                found[layer.name] = x
                x = np.concatenate([x, labels[layer.name]]) if layer.skip else labels[layer.name]
            features.append(flattened(x, size // len(x)))
        after = _through(self._trunk, np.concatenate(features), labels, found)
        for head in self._heads:
            _through(head, after, labels, found)
        return {**found, self._prefix: after}


class ResidualArchitecture(Architecture):
    """A dense layer, blocks that each add a function of the normalised stream to it, and a layer of outputs over the
    normalised stream. Lee et al. 2024, arXiv:2410.09754, section 4.1.

    outputs, members, gain: see `Architecture`.
    """

    def __init__(
        self,
        spec: SimBa,
        space: Space,
        outputs: int | tuple[int, ...] | None,
        members: int | None = None,
        gain: float = 1.0,
    ):
        self._residual = spec
        of_each_layer = Mlp((spec.width,), spec.activation, spec.initializer)
        super().__init__(of_each_layer, space, outputs, members, gain)

    def _add_layers(self, inputs: int, outputs: int | tuple[int, ...] | None, gain: float) -> None:
        spec = self._residual
        self._trunk, _ = self._add_chain("", inputs, (spec.width,), 0, 1.0)
        self._blocks: list[tuple[Dense, Dense]] = []
        self._norms: list[Norm] = []
        for i in range(spec.blocks):
            self._norms.append(self._add_norm(f"block{i}", spec.width, 0))
            wide, _ = self._add_chain(f"block{i}.", spec.width, (spec.expansion * spec.width,), 0)
            narrow, _ = self._add_chain(f"block{i}.", spec.expansion * spec.width, (spec.width,), 1, 1.0)
            self._blocks.append((wide[0], narrow[0]))
        self._last = self._add_norm("last", spec.width, 0)
        self.shape = outputs if isinstance(outputs, tuple) else (spec.width if outputs is None else outputs,)
        self.outputs: int = math.prod(self.shape)
        if outputs is not None:
            self._heads.append(self._add_chain("", spec.width, (self.outputs,), 1, gain)[0])

    def _dense(self, values: Mapping[str, Any], x: Any, moved: dict[str, Any] | None = None) -> Any:
        x = self._layer(values, self._trunk[0], x, hidden=False)
        for norm, (wide, narrow) in zip(self._norms, self._blocks, strict=True):
            y = self._layer(values, wide, normalised(values, norm, x))
            x = x + self._layer(values, narrow, y, hidden=False)
        x = normalised(values, self._last, x)
        for (head,) in self._heads:
            x = self._layer(values, head, x, hidden=False)
        return x if len(self.shape) == 1 else ops.reshape(x, (-1, *self.shape))

    def layer_units(self) -> dict[str, LayerUnits]:
        groups = self._trunk, *self._blocks, *self._heads
        return {layer.name: LayerUnits.of(layer, self.parameters) for group in groups for layer in group}


class SphericalArchitecture(ResidualArchitecture):
    """The layers of `SimBaV2`; outputs are two layers over the stream. Lee et al. 2025, arXiv:2502.15280, section 4.1.

    outputs, members: see `Architecture`. gain is left out: at first outputs are close to 0 anyway.
    """

    _residual: SimBaV2

    def _add_layers(self, inputs: int, outputs: int | tuple[int, ...] | None, gain: float) -> None:
        spec = self._residual
        n, wide = spec.width, spec.expansion * spec.width
        self._trunk = [self._add_scaled("dense0", inputs + 1, n)]
        self._blocks = [
            (self._add_scaled(f"block{i}.dense0", n, wide), self._add_scaled(f"block{i}.dense1", wide, n, 1.0))
            for i in range(spec.blocks)
        ]
        self.shape = outputs if isinstance(outputs, tuple) else (n if outputs is None else outputs,)
        self.outputs: int = math.prod(self.shape)
        if outputs is not None:
            last = self._add_chain("", n, (self.outputs,), 2, gain)[0][0]
            self.parameters[last.weight] = self.parameters[last.weight]._replace(initializer="unit")
            self.projected += (last.weight,)
            self._heads.append([self._add_scaled("dense1", n, n), last])

    def _add_scaled(self, name: str, inputs: int, units: int, gain: float = 2**0.5) -> Dense:
        """A layer without biases, and scales of its outputs."""
        stack = () if self.members is None else (self.members,)
        weight = f"{self._prefix}{name}.weight"
        self.parameters[weight] = Parameter((*stack, inputs, units), "unit", inputs, 1.0)
        self.projected += (weight,)
        shape = (units,) if self.members is None else (self.members, 1, units)
        self.parameters[f"{self._prefix}{name}.scale"] = Parameter(shape, "constant", units, gain)
        return Dense(weight, None, None, name=self._prefix + name)

    def _scaled(self, values: Mapping[str, Any], layer: Dense, x: Any) -> Any:
        return self._layer(values, layer, x, hidden=False) * values[f"{layer.name}.scale"]

    def _dense(self, values: Mapping[str, Any], x: Any, moved: dict[str, Any] | None = None) -> Any:
        spec = self._residual
        x = ops.concatenate([x, spec.shift * ops.ones_like(x[..., :1])], -1)
        x = unit(self._scaled(values, self._trunk[0], unit(x)))
        start = spec.width**0.5 / (spec.blocks + 1)  # the share of a block is 1 / (blocks + 1) at first
        for wide, narrow in self._blocks:
            y = self._activation(self._scaled(values, wide, x)) + SMALL
            y = unit(self._layer(values, narrow, y, hidden=False))
            x = unit(x + start * values[f"{narrow.name}.scale"] * (y - x))
        for hidden, last in self._heads:
            x = self._layer(values, last, self._scaled(values, hidden, x), hidden=False)
        return x if len(self.shape) == 1 else ops.reshape(x, (-1, *self.shape))


def _through(
    layers: list[Dense], x: np.ndarray, labels: Mapping[str, np.ndarray], found: dict[str, np.ndarray]
) -> np.ndarray:
    """Labels of what comes out of some layers; those of their inputs are added to `found`."""
    for layer in layers:
        found[layer.name] = x
        x = np.concatenate([x, labels[layer.name]]) if layer.skip else labels[layer.name]
    return x
