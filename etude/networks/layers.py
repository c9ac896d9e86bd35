"""What layers are made of: parameters and how they start, and the dense layer, noisy or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from etude import ops

NORM_EPSILON = 1e-6  # added to the variance


class Parameter(NamedTuple):
    """One array of a network and how it starts."""

    shape: tuple[int, ...]
    initializer: str
    # fan_in; orthogonal; zeros; ones; constant: gain / sqrt(fan_in); forget: 1 in the second quarter (LSTM), else 0
    fan_in: int
    gain: float


class Dense(NamedTuple):
    """The names of a dense layer's parameters."""

    weight: str
    bias: str
    noisy: Noisy | None
    norm: Norm | None = None
    name: str = ""  # what the names of its parameters begin with
    skip: bool = False  # whether its output is concatenated to its input


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


def affine(values: Mapping[str, Any], layer: Dense, x: Any) -> Any:
    """A dense layer, and its layer normalisation where it has one. With noise e of inputs and of units, and f(e) =
    sign(e) sqrt|e|, its weight is `weight + weight_scale * f(e_in) f(e_out)` and its bias `bias + bias_scale *
    f(e_out)`. Fortunato et al. 2018, arXiv:1706.10295, equations 9 to 11."""
    weight, bias = values[layer.weight], values[layer.bias]
    if layer.noisy is not None:
        noise_in, noise_out = (_rooted(values[name]) for name in (layer.noisy.inputs, layer.noisy.units))
        weight = weight + values[layer.noisy.weight] * (ops.expand_dims(noise_in, -1) * ops.expand_dims(noise_out, -2))
        bias = bias + values[layer.noisy.bias] * ops.reshape(noise_out, tuple(bias.shape))
    x = ops.affine(x, weight, bias)
    return x if layer.norm is None else normalised(values, layer.norm, x)


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


def _rooted(noise: Any) -> Any:
    return ops.sign(noise) * ops.sqrt(ops.abs(noise))


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
    return (gain * np.reshape(np.stack(matrices), shape)).astype(np.float32)


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Saxe et al. 2014, arXiv:1312.6120: orthonormal rows or columns, whichever are fewer."""
    normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
