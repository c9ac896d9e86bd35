"""`ops` in NumPy. Acting runs on these, so they avoid NumPy's slower calls: np.clip, np.max, take_along_axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

PRECEDENCE = 1

_BLOCK = 8  # rows per matrix product
_ONE_BLOCK = np.arange(_BLOCK)
_ZERO = np.zeros((), np.float32)  # an array, which NumPy takes up faster than a Python number

tanh: Any = np.tanh
exp: Any = np.exp
log: Any = np.log
log1p: Any = np.log1p
expm1: Any = np.expm1
sin: Any = np.sin
cos: Any = np.cos
sqrt: Any = np.sqrt
square: Any = np.square
abs: Any = np.abs
sign: Any = np.sign
rint: Any = np.rint
isfinite: Any = np.isfinite
zeros_like: Any = np.zeros_like
ones_like: Any = np.ones_like
minimum: Any = np.minimum
maximum: Any = np.maximum
sort: Any = np.sort
concatenate: Any = np.concatenate
stack: Any = np.stack
squeeze: Any = np.squeeze
swapaxes: Any = np.swapaxes


def matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """BLAS picks its kernel by the number of rows, and kernels differ in the last bits. Rows are therefore multiplied
    in blocks of eight: what one environment does then does not depend on how many others share its worker."""
    if w.ndim > 2:
        # x [..., M, K], w [..., K, N] -> [..., M, N]
        product = np.matmul(_in_blocks(x), w[..., None, :, :])
        rows = product.shape[-3] * _BLOCK
        return product.reshape(*product.shape[:-3], rows, w.shape[-1])[..., : x.shape[-2], :]
    if x.ndim != 2:
        return matmul(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[1])
    rows = len(x)
    if rows == _BLOCK:
        return np.ascontiguousarray(x).dot(w)
    if 0 < rows < _BLOCK:
        return x.take(_ONE_BLOCK, 0, None, "clip").dot(w)[:rows]
    return np.matmul(_in_blocks(x), w).reshape(-1, w.shape[1])[:rows]


def _in_blocks(x: np.ndarray) -> np.ndarray:
    """[..., M, K] -> [..., blocks, 8, K] in C order; the last row fills the last block."""
    rows = x.shape[-2]
    if rows % _BLOCK:
        x = x.take(np.arange(rows + -rows % _BLOCK), -2, None, "clip")
    return np.ascontiguousarray(x).reshape(*x.shape[:-2], x.shape[-2] // _BLOCK, _BLOCK, x.shape[-1])


def conv(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    height, width, channels, filters = kernel.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), (1, 2))[:, ::stride, ::stride]
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], height * width * channels)
    return matmul(patches, kernel.reshape(-1, filters))


# fmt: off
def affine(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray: return matmul(x, w) + bias
def pad(x: np.ndarray, n: int) -> np.ndarray: return np.pad(x, ((0, 0), (n, n), (n, n), (0, 0)))
def relu(x: np.ndarray) -> np.ndarray: return np.maximum(x, _ZERO)
def erf(x: np.ndarray) -> np.ndarray: return np.frompyfunc(math.erf, 1, 1)(x).astype(np.float32)
def elu(x: np.ndarray) -> np.ndarray: return np.where(x > 0, x, np.expm1(np.minimum(x, _ZERO)))
def gelu(x: np.ndarray) -> np.ndarray: return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
def silu(x: np.ndarray) -> np.ndarray: return x * sigmoid(x)
def softplus(x: np.ndarray) -> np.ndarray: return np.maximum(x, _ZERO) + np.log1p(np.exp(-np.abs(x)))
def stop_gradient(x: np.ndarray) -> np.ndarray: return x
def cast(x: np.ndarray, dtype: str) -> np.ndarray: return np.asarray(x).astype(dtype, copy=False)
def clip(x: Any, low: Any, high: Any) -> np.ndarray: return np.minimum(np.maximum(x, low), high)
def std(x: np.ndarray, axis: Any = None, keepdims: Any = False) -> np.ndarray: return np.std(x, axis, keepdims=keepdims)
def all(x: np.ndarray, axis: Any = None) -> np.ndarray: return np.logical_and.reduce(x, axis)
def cumsum(x: np.ndarray, axis: int = -1) -> np.ndarray: return np.add.accumulate(x, axis)
def reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray: return np.asarray(x).reshape(shape)
def argmax(x: np.ndarray, axis: int = -1) -> np.ndarray: return x.argmax(axis)
def gather(x: np.ndarray, index: np.ndarray) -> np.ndarray: return x[np.arange(len(x))[:, None], index]
# fmt: on


def expand_dims(x: np.ndarray, axis: int) -> np.ndarray:
    # `np.expand_dims` looks at its arguments for longer than a small layer takes.
    return x[(*[slice(None)] * axis, None) if axis >= 0 else (..., None, *[slice(None)] * ~axis)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))  # which does not overflow
    return np.where(x < 0, e, 1) / (1 + e)


def linspace(low: float, high: float, n: int, like: Any) -> np.ndarray:
    return np.linspace(low, high, n, dtype=np.float32)


def where(condition: np.ndarray, x: Any, y: Any) -> np.ndarray:
    if isinstance(x, float) and isinstance(y, float):
        x = np.float32(x)  # two Python floats would make float64
        y = np.float32(y)
    return np.where(condition, x, y)


def sum(x: np.ndarray, axis: Any = None, keepdims: Any = False) -> np.ndarray:
    return np.add.reduce(x, axis, keepdims=keepdims)


def mean(x: np.ndarray, axis: Any = None, keepdims: Any = False) -> np.ndarray:
    dtype = None if x.dtype.kind == "f" else np.float32
    return np.mean(x, axis, dtype, keepdims=keepdims)


def standardised(x: np.ndarray, epsilon: float) -> np.ndarray:
    n = x.shape[-1]  # `np.mean` looks at its arguments for longer than a small layer takes
    x = x - np.add.reduce(x, -1, keepdims=True) / n
    return x / np.sqrt(np.add.reduce(np.square(x), -1, keepdims=True) / n + epsilon)


def max(x: np.ndarray, axis: Any = None, keepdims: Any = False) -> np.ndarray:
    return np.maximum.reduce(x, axis, keepdims=keepdims)


def min(x: np.ndarray, axis: Any = None, keepdims: Any = False) -> np.ndarray:
    return np.minimum.reduce(x, axis, keepdims=keepdims)


def logsumexp(x: np.ndarray, axis: int = -1, keepdims: Any = False) -> np.ndarray:
    largest = np.maximum.reduce(x, axis, keepdims=True)
    result = np.log(np.add.reduce(np.exp(x - largest), axis, keepdims=True)) + largest
    return result if keepdims else result.squeeze(axis)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - np.maximum.reduce(x, -1, keepdims=True))
    return e / np.add.reduce(e, -1, keepdims=True)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - np.maximum.reduce(x, -1, keepdims=True)
    return shifted - np.log(np.add.reduce(np.exp(shifted), -1, keepdims=True))


def attention(query: np.ndarray, keys: Sequence[Any], values: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    query = query.swapaxes(1, 2) * query.shape[-1] ** -0.5
    scores = np.concatenate([np.matmul(query, key.transpose(0, 2, 3, 1)) for key in keys], -1)
    weights = softmax(np.where(mask[:, None], scores, np.float32(-1e30)))
    attended, start = np.zeros_like(query), 0
    for value in values:
        end = start + value.shape[1]
        attended, start = attended + np.matmul(weights[..., start:end], value.swapaxes(1, 2)), end
    return attended.swapaxes(1, 2)


def huber(error: np.ndarray, width: float) -> np.ndarray:
    size = np.abs(error)
    inner = np.minimum(size, width)
    return inner * (size - 0.5 * inner)


def one_hot(index: np.ndarray, n: int) -> np.ndarray:
    return (np.asarray(index)[..., None] == np.arange(n)).astype(np.float32)


def take_last(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    if x.ndim == 2:
        return x[np.arange(len(x)), index]
    flat = x.reshape(-1, x.shape[-1])
    return flat[np.arange(len(flat)), np.broadcast_to(index, x.shape[:-1]).reshape(-1)].reshape(x.shape[:-1])


def take_row(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, np.asarray(index)[..., None, None], -2).squeeze(-2)


def split_last(x: np.ndarray, sizes: Sequence[int]) -> Sequence[np.ndarray]:
    ends = itertools.accumulate(sizes)
    return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]


def linear_binning(place: np.ndarray, weight: np.ndarray, n: int) -> np.ndarray:
    distance = np.abs(place[..., None, :] - np.arange(n, dtype=place.dtype)[:, None])  # [..., n, M]
    return np.sum(np.maximum(1.0 - distance, 0.0) * weight[..., None, :], -1)


def uniform(key: np.random.Generator, low: Any, high: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(key.uniform(low, high, shape))


def linear_recurrence(x: np.ndarray, decay: np.ndarray, last: np.ndarray) -> np.ndarray:
    # By doubling, in log2(T) passes over whole arrays. Hillis & Steele 1986, doi:10.1145/7902.7903.
    y, decay, reach = x.copy(), decay.copy(), 1
    y[-1:] += decay[-1:] * last
    while reach < len(y):
        y[:-reach] += decay[:-reach] * y[reach:]
        decay[:-reach] *= decay[reach:]
        reach *= 2
    return y


def gradient(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    exact, found, size = x.astype(np.float64), np.empty_like(x), 1e-6
    for place in np.ndindex(x.shape):
        moved = np.array([exact, exact])
        moved[(slice(None), *place)] += (-size, size)
        low, high = (np.add.reduce(function(each), None) for each in moved)
        found[place] = (high - low) / (2 * size)
    return found


def scan(step: Callable[..., np.ndarray], start: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    found, y = [], start
    for now in zip(*inputs, strict=True):
        y = step(y, *now)
        found.append(y)
    return np.stack(found)
