"""What layers are made of: parameters and how they start, and the dense layer, noisy or not.

Then what the axes of a network's parameters count: units and inputs of layers, by which weights are carried over to a
network of another size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from etude import ops

NORM_EPSILON = 1e-6  # added to the variance
# Of batch renormalisation, as in CrossQ (Bhatt et al. 2024, arXiv:1902.05605v4):
RENORM_EPSILON = 1e-3  # added to the variance
RENORM_RATE = 0.01  # of the running statistics at each forward pass of training
RENORM_AFTER = 100_000  # forward passes that normalise by the batch alone, before the running statistics correct it
LARGEST_SCALE, LARGEST_SHIFT = 3.0, 5.0  # of these corrections


class Parameter(NamedTuple):
    """One array of a network and how it starts."""

    shape: tuple[int, ...]
    initializer: str
    # fan_in; orthogonal; unit: orthogonal, with columns of norm 1; zeros; ones; constant: gain / sqrt(fan_in);
    # forget: 1 in the second quarter (LSTM), else 0
    fan_in: int
    gain: float


class Dense(NamedTuple):
    """The names of a dense layer's parameters."""

    weight: str
    bias: str | None
    noisy: Noisy | None
    norm: Norm | None = None
    name: str = ""  # what the names of its parameters begin with
    skip: bool = False  # whether its output is concatenated to its input
    renorm: Renorm | None = None  # of its inputs
    dropout: tuple[float, int, int] | None = None  # the fraction that is dropped; where its units' noise begins, ends
    spectral: str | None = None  # the name of what estimates the direction that its weights stretch most


class Renorm(NamedTuple):
    """The names of the parameters of a batch renormalisation, and of its running statistics."""

    scale: str
    bias: str
    mean: str
    variance: str
    passes: str  # forward passes of training

    @property
    def statistics(self) -> tuple[str, ...]:
        """What no loss trains."""
        return self[2:]


class Norm(NamedTuple):
    """The names of the parameters of a layer normalisation, and the units in each of its groups; (): one group."""

    scale: str
    bias: str
    groups: tuple[int, ...] = ()


class Convolution(NamedTuple):
    """The names of a convolution's parameters, and how it reads its input."""

    weight: str
    bias: str
    stride: int
    padding: int
    name: str
    skip: bool


class Noisy(NamedTuple):
    """The names of what is added to a dense layer's parameters: trained scales, and the noise that they scale."""

    weight: str
    bias: str
    inputs: str
    units: str


def noisy(values: Mapping[str, Any], names: Noisy, weight: Any, bias: Any) -> tuple[Any, Any]:
    """A dense layer's weight and bias with noise e of inputs and of units. With f(e) = sign(e) sqrt|e| they are
    `weight + weight_scale * f(e_in) f(e_out)` and `bias + bias_scale * f(e_out)`. Fortunato et al. 2018,
    arXiv:1706.10295, equations 9 to 11."""
    noise_in, noise_out = (
        ops.sign(noise) * ops.sqrt(ops.abs(noise)) for noise in (values[names.inputs], values[names.units])
    )
    weight = weight + values[names.weight] * (ops.expand_dims(noise_in, -1) * ops.expand_dims(noise_out, -2))
    return weight, bias + values[names.bias] * ops.reshape(noise_out, tuple(bias.shape))


DROPOUT, DROPOUT_OF_UNITS = "dropout", "dropout_of_units"  # variables of a part that drops units, with noise
_PERIODS = 16.0  # of what noise is folded into: standard normal numbers become uniform ones


def dropped(examples: Any, units: Any, layer: tuple[float, int, int], x: Any) -> Any:
    """Dropout (Srivastava et al. 2014): each unit of each example is 0 with this probability, and else divided by what
    is left of 1. Whether it is follows from the sum of the example's noise and the unit's, of which the fractional part
    is uniform: the units of an example are independent of one another, and so is a unit in any two examples.

    examples: [B]; units: [everything], of all layers and members, both standard normal; 0: nothing is dropped.
    x: [B, units], or [members, B, units].
    """
    rate, start, end = layer
    own = ops.reshape(units[start:end], (-1, 1, x.shape[-1]) if x.ndim == 3 else (1, -1))
    phase = _PERIODS * (ops.expand_dims(examples, -1) + own)
    # From -0.5 to 0.5, 0 for noise of 0
    kept = ops.abs(phase - ops.rint(phase)) <= 0.5 * (1.0 - rate)
    return ops.where(kept, x / (1.0 - rate), ops.zeros_like(x))


def largest_singular_value(values: Mapping[str, Any], layer: Dense, moved: dict[str, Any] | None) -> Any:
    """Of a layer's weights, by one step of the power method from the direction that is held; it moves in a pass of
    training, into `moved`. Miyato et al. 2018, arXiv:1802.05957, algorithm 1. [1], or [members, 1, 1]."""
    assert layer.spectral is not None
    weight, direction = values[layer.weight], values[layer.spectral]
    stacked, still = direction.ndim == weight.ndim, ops.stop_gradient(weight)
    row = unit(ops.sum(still * direction, -1, keepdims=True), -2)
    direction = unit(ops.sum(still * row, -2, keepdims=stacked), -1)
    if moved is not None:
        moved[layer.spectral] = direction
    return ops.sum(ops.sum(weight * row, -2, keepdims=stacked) * direction, -1, keepdims=True)


def unit(x: Any, axis: int = -1) -> Any:
    """Scaled to norm 1 along an axis."""
    return x / (ops.sqrt(ops.sum(ops.square(x), axis, keepdims=True)) + NORM_EPSILON)


def renormalised(values: Mapping[str, Any], norm: Renorm, x: Any, moved: dict[str, Any] | None) -> Any:
    """Batch renormalisation (Ioffe 2017, arXiv:1702.03275, algorithm 1): each input by the mean and the deviation of
    the batch, corrected towards the running ones; these move, into `moved`. Where that is None, nothing is trained, and
    inputs are normalised by the running statistics alone."""
    running, deviation = values[norm.mean], ops.sqrt(values[norm.variance] + RENORM_EPSILON)
    if moved is None:
        return (x - running) * (values[norm.scale] / deviation) + values[norm.bias]
    # both moments about a row of the batch: they take one pass over it, and a large mean costs no precision
    near = ops.stop_gradient(ops.replica_mean(x[:, :1] if x.ndim == 3 else x[0]))
    x = x - near
    offset = ops.replica_mean(ops.mean(x, -2, keepdims=x.ndim == 3))
    variance = ops.replica_mean(ops.mean(ops.square(x), -2, keepdims=x.ndim == 3)) - ops.square(offset)
    mean, own = near + offset, ops.sqrt(variance + RENORM_EPSILON)
    late = values[norm.passes] >= RENORM_AFTER
    scale = ops.clip(own / deviation, 1.0 / LARGEST_SCALE, LARGEST_SCALE)
    shift = ops.clip((mean - running) / deviation, -LARGEST_SHIFT, LARGEST_SHIFT)
    scale = ops.stop_gradient(ops.where(late, scale, ops.ones_like(scale)))
    shift = ops.stop_gradient(ops.where(late, shift, ops.zeros_like(shift)))
    factor, bias = values[norm.scale] * scale / own, values[norm.scale] * shift + values[norm.bias]
    moved[norm.mean] = ops.stop_gradient(running + RENORM_RATE * (mean - running))
    moved[norm.variance] = ops.stop_gradient(values[norm.variance] + RENORM_RATE * (variance - values[norm.variance]))
    moved[norm.passes] = values[norm.passes] + 1.0
    return x * factor + (bias - offset * factor)


def normalised(values: Mapping[str, Any], norm: Norm, x: Any) -> Any:
    """Layer normalisation over the last axis, or groups of it. Ba et al. 2016, arXiv:1607.06450, equations 3 and 4."""
    if norm.groups:
        x = ops.concatenate([ops.standardised(group, NORM_EPSILON) for group in ops.split_last(x, norm.groups)], -1)
    else:
        x = ops.standardised(x, NORM_EPSILON)
    return x * values[norm.scale] + values[norm.bias]


def convolved(values: Mapping[str, Any], layer: Convolution, x: Any) -> Any:
    """A convolution of images [B, height, width, channels], with its padding."""
    n = layer.padding
    if n:
        x = ops.pad(x, n) if n > 0 else x[:, -n:n, -n:n]
    return ops.conv(x, values[layer.weight], layer.stride) + values[layer.bias]


def draw_all(parameters: Mapping[str, Parameter], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Initial values by name, float32."""
    return {name: draw(parameter, rng) for name, parameter in parameters.items()}


def draw(parameter: Parameter, rng: np.random.Generator) -> np.ndarray:
    shape, initializer, fan_in, gain = parameter
    if initializer == "zeros":
        return np.zeros(shape, np.float32)
    if initializer == "forget":
        return np.repeat(np.array([0.0, 1.0, 0.0, 0.0], np.float32), shape[0] // 4)
    if initializer == "ones":
        return np.ones(shape, np.float32)
    if initializer == "constant":
        return np.full(shape, gain / np.sqrt(fan_in), np.float32)
    if initializer == "fan_in":
        limit = gain / np.sqrt(fan_in)
        return rng.uniform(-limit, limit, shape).astype(np.float32)
    stack = shape[:-2] if len(shape) == 3 else ()
    matrices = [_orthogonal(fan_in, shape[-1], rng) for _ in range(int(np.prod(stack, dtype=int)))]
    found = (gain * np.reshape(np.stack(matrices), shape)).astype(np.float32)
    return unit(found, -2) if initializer == "unit" else found


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Saxe et al. 2014, arXiv:1312.6120: orthonormal rows or columns, whichever are fewer."""
    normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T


Record = Callable[[str, Any], None]  # called with the name of a layer and its inputs
NEW = -1  # the label of a unit that no other network has
_PIXELS = 2**24  # the most pixels of an image


class LayerUnits(NamedTuple):
    """A layer as a set of units.

    chain: the kind of layer, in layers before or after a cell with that in front: dense, conv, cell, before.dense;
        block: the layers of a transformer's blocks.
    stream: which one of several chains of this kind, such as the value stream of a dueling network, or which layer of
        the block.
    number: in its chain, from 0.
    units: how many. axes: for each parameter what its axes count: "members", "kernel", "inputs", "units", "recurrent"
        (the units as inputs), "gates" (the units, once for each gate), "heads" (the numbers of each unit, a head, once
        for queries, keys and values), or "" for an axis of length 1.
    residual: whether its output is added to what the layers before it have put out, so that a new one computes 0.
    """

    chain: str
    stream: str
    number: int
    units: int
    axes: Mapping[str, tuple[str, ...]]
    groups: tuple[int, ...] = ()  # sizes of norm groups; (): one
    residual: bool = False

    @classmethod
    def of(cls, layer: Dense | Convolution, parameters: Mapping[str, Parameter]) -> LayerUnits:
        """Of a layer with these parameters."""
        axes: dict[str, tuple[str, ...]]
        groups: tuple[int, ...] = ()
        if isinstance(layer, Convolution):
            axes = {layer.weight: ("kernel", "kernel", "inputs", "units"), layer.bias: ("units",)}
        else:
            stacked = len(parameters[layer.weight].shape) == 3
            members = ("members",) if stacked else ()
            matrix: tuple[str, ...] = (*members, "inputs", "units")
            row: tuple[str, ...] = ("members", "", "units") if stacked else ("units",)
            axes = {layer.weight: matrix} | ({} if layer.bias is None else {layer.bias: row})
            if layer.norm is not None:
                axes |= {layer.norm.scale: row, layer.norm.bias: row}
            if layer.noisy is not None:
                axes |= {layer.noisy.weight: matrix, layer.noisy.bias: row}
                axes |= {layer.noisy.inputs: (*members, "inputs"), layer.noisy.units: (*members, "units")}
            if layer.spectral is not None:
                axes[layer.spectral] = row
            if layer.renorm is not None:
                of_inputs = ("members", "", "features") if stacked else ("features",)
                axes |= dict.fromkeys(layer.renorm[:4], of_inputs)
                axes[layer.renorm.passes] = ("members", "", "") if stacked else ("",)
            groups = () if layer.norm is None else layer.norm.groups
        prefix, stream, kind, number = re.fullmatch(  # type: ignore[union-attr]
            r"(before\.|after\.)?(.*?)(dense|conv)(\d+)", layer.name
        ).groups()
        return cls(f"{prefix or ''}{kind}", stream, int(number), parameters[layer.weight].shape[-1], axes, groups)


def observed(part: int, n: int) -> np.ndarray:
    """Labels of n numbers of a part of the observation: the vectors are part 0, images those from 1."""
    return part * 2**24 + np.arange(n, dtype=np.int64)


def labelled(layer: int, n: int) -> np.ndarray:
    """Labels of the n units of a layer."""
    return 2**36 + layer * 2**20 + np.arange(n, dtype=np.int64)


def flattened(labels: np.ndarray, pixels: int) -> np.ndarray:
    """Labels of images with these channels, one pixel after the other."""
    each = labels * _PIXELS + np.arange(pixels, dtype=np.int64)[:, None]
    return np.where(labels == NEW, NEW, each).reshape(-1)


def unflattened(labels: np.ndarray) -> np.ndarray:
    """Labels of the channels of flattened images; others stay."""
    return np.where(labels >= 2**60, labels // _PIXELS, labels)
