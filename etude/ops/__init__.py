"""Functions over arrays: one name for NumPy, torch, TensorFlow and JAX, picked by the type of the arrays at each call.

Names and arguments follow NumPy and keras.ops; arithmetic, comparison and slicing are the arrays' own operators. Python
numbers mix with arrays of any kind, float32 stays float32, and a function of Python numbers alone is a Python number.
Reductions go over all axes where `axis` is None. A framework is imported only when one of its arrays comes by.
"""

# ruff: noqa: A001  (the field's names for these functions are also Python's)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etude.ops.dispatch import IMPLEMENTATIONS as _of
from etude.ops.dispatch import among as _among
from etude.ops.dispatch import mean_over_replicas as _mean_over_replicas

Array = Any  # of NumPy, torch, TensorFlow or JAX, a Keras variable, or a Python number where that makes sense
Axis = int | tuple[int, ...] | None


def matmul(x: Array, w: Array) -> Array:
    """[..., K] @ [K, N] -> [..., N]; for stacked w [E, K, N], x [B, K] or [E, B, K] -> [E, B, N].

    In NumPy the bits of a row do not depend on how many rows there are.
    """
    return _of[type(x)].matmul(x, w)


def affine(x: Array, w: Array, bias: Array) -> Array:
    """matmul(x, w) + bias, in one operation where the framework has one; bias [N], or [E, 1, N] for stacked w."""
    return _of[type(x)].affine(x, w, bias)


def conv(x: Array, kernel: Array, stride: int) -> Array:
    """Convolution without padding: x [B, H, W, C], kernel [h, w, C, F] -> [B, (H-h)//stride+1, (W-w)//stride+1, F]."""
    return _of[type(x)].conv(x, kernel, stride)


def pad(x: Array, n: int) -> Array:
    """n zeros on each side of the height and the width of x [B, H, W, C]."""
    return _of[type(x)].pad(x, n)


# fmt: off
def relu(x: Array) -> Array: return _of[type(x)].relu(x)
def tanh(x: Array) -> Array: return _of[type(x)].tanh(x)
def sigmoid(x: Array) -> Array: return _of[type(x)].sigmoid(x)
def exp(x: Array) -> Array: return _of[type(x)].exp(x)
def log(x: Array) -> Array: return _of[type(x)].log(x)
def sin(x: Array) -> Array: return _of[type(x)].sin(x)
def cos(x: Array) -> Array: return _of[type(x)].cos(x)
def erf(x: Array) -> Array: return _of[type(x)].erf(x)
def expm1(x: Array) -> Array: return _of[type(x)].expm1(x)
def log1p(x: Array) -> Array: return _of[type(x)].log1p(x)
def sqrt(x: Array) -> Array: return _of[type(x)].sqrt(x)
def square(x: Array) -> Array: return _of[type(x)].square(x)
def abs(x: Array) -> Array: return _of[type(x)].abs(x)
def sign(x: Array) -> Array: return _of[type(x)].sign(x)
def isfinite(x: Array) -> Array: return _of[type(x)].isfinite(x)
def stop_gradient(x: Array) -> Array: return _of[type(x)].stop_gradient(x)
def zeros_like(x: Array) -> Array: return _of[type(x)].zeros_like(x)
def ones_like(x: Array) -> Array: return _of[type(x)].ones_like(x)
def minimum(x: Array, y: Array) -> Array: return _among(x, y).minimum(x, y)
def maximum(x: Array, y: Array) -> Array: return _among(x, y).maximum(x, y)
def sum(x: Array, axis: Axis = None, keepdims: bool = False) -> Array: return _of[type(x)].sum(x, axis, keepdims)
def max(x: Array, axis: Axis = None, keepdims: bool = False) -> Array: return _of[type(x)].max(x, axis, keepdims)
def min(x: Array, axis: Axis = None, keepdims: bool = False) -> Array: return _of[type(x)].min(x, axis, keepdims)
def cumsum(x: Array, axis: int = -1) -> Array: return _of[type(x)].cumsum(x, axis)
def sort(x: Array, axis: int = -1) -> Array: return _of[type(x)].sort(x, axis)
def concatenate(arrays: Sequence[Array], axis: int = -1) -> Array: return _of[type(arrays[0])].concatenate(arrays, axis)
def stack(arrays: Sequence[Array], axis: int = 0) -> Array: return _of[type(arrays[0])].stack(arrays, axis)
def reshape(x: Array, shape: tuple[int, ...]) -> Array: return _of[type(x)].reshape(x, shape)
def expand_dims(x: Array, axis: int) -> Array: return _of[type(x)].expand_dims(x, axis)
def squeeze(x: Array, axis: int) -> Array: return _of[type(x)].squeeze(x, axis)
def swapaxes(x: Array, axis1: int, axis2: int) -> Array: return _of[type(x)].swapaxes(x, axis1, axis2)
# fmt: on


def elu(x: Array) -> Array:
    """x where positive, else exp(x) - 1. Clevert et al. 2016, arXiv:1511.07289."""
    return _of[type(x)].elu(x)


def gelu(x: Array) -> Array:
    """The tanh approximation on every engine. Hendrycks & Gimpel 2016, arXiv:1606.08415."""
    return _of[type(x)].gelu(x)


def silu(x: Array) -> Array:
    """x * sigmoid(x). Elfwing et al. 2018, arXiv:1702.03118."""
    return _of[type(x)].silu(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return _of[type(x)].softplus(x)


def rint(x: Array) -> Array:
    """The nearest whole number; of two, the even one."""
    return _of[type(x)].rint(x)


def uniform(key: Any, low: Array, high: Array, shape: tuple[int, ...]) -> Array:
    """Uniform random numbers from low to high. key: a generator of NumPy, or a key of JAX."""
    return _of[type(key)].uniform(key, low, high, shape)


def linspace(low: float, high: float, n: int, like: Array) -> Array:
    """n evenly spaced float32 numbers from low to high, both included; an array as `like` is, and where that lies."""
    return _of[type(like)].linspace(low, high, n, like)


def cast(x: Array, dtype: str) -> Array:
    """dtype: a name such as "float32", "int32" or "bool"."""
    return _of[type(x)].cast(x, dtype)


def clip(x: Array, low: Array, high: Array) -> Array:
    """low, high: numbers or arrays that broadcast with x."""
    return _among(x, low, high).clip(x, low, high)


def where(condition: Array, x: Array, y: Array) -> Array:
    """x where the condition [bool] holds, else y."""
    return _among(condition, x, y).where(condition, x, y)


def mean(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Booleans and integers are averaged as float32."""
    return _of[type(x)].mean(x, axis, keepdims)


def replica_mean(x: Array) -> Array:
    """The mean of x over the replicas that each compute the loss of a part of the batch; x itself where one computes
    the loss of all of it, or where x is a number. For statistics of the batch that a loss divides by:
    `replica_mean(mean(abs(q)))`."""
    mean_of = _mean_over_replicas()
    return x if mean_of is None or isinstance(x, float | int) else mean_of(x)


def replica_std(x: Array) -> Array:
    """The standard deviation of all numbers of x, on all replicas; see `replica_mean`."""
    if _mean_over_replicas() is None:
        return std(x)
    centred = x - replica_mean(mean(x))
    return sqrt(replica_mean(mean(centred * centred)))


def std(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """The standard deviation of the values themselves: divided by n, not n - 1."""
    return _of[type(x)].std(x, axis, keepdims)


def standardised(x: Array, epsilon: float) -> Array:
    """x without its mean over the last axis, divided by its standard deviation there: the root of the variance and
    epsilon."""
    return _of[type(x)].standardised(x, epsilon)


def all(x: Array, axis: Axis = None) -> Array:
    """Whether every boolean holds."""
    return _of[type(x)].all(x, axis)


def argmax(x: Array, axis: int = -1) -> Array:
    """Where the largest value is; the first of several."""
    return _of[type(x)].argmax(x, axis)


def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
    return _of[type(x)].logsumexp(x, axis, keepdims)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    return _of[type(x)].softmax(x)


def log_softmax(x: Array) -> Array:
    """Over the last axis."""
    return _of[type(x)].log_softmax(x)


def attention(query: Array, keys: Sequence[Array], values: Sequence[Array], mask: Array) -> Array:
    """Scaled dot-product attention: query [B, L, H, d], keys and values in pieces [B, S_i, H, d] one after the other,
    mask [B, L, sum of S_i], True where a query sees a key; each sees one at least -> [B, L, H, d]. Vaswani et al. 2017,
    arXiv:1706.03762, equation 1."""
    return _of[type(query)].attention(query, keys, values, mask)


def huber(error: Array, width: float = 1.0) -> Array:
    """`error**2 / 2` up to |error| = width, then a straight line with the same slope."""
    return _of[type(error)].huber(error, width)


def one_hot(index: Array, n: int) -> Array:
    """[...] integers -> [..., n] float32; an index outside 0..n-1 gives zeros."""
    return _of[type(index)].one_hot(index, n)


def take_last(x: Array, index: Array) -> Array:
    """x[..., index]: x [..., n] and integers [...], or [B] for [members, B, n] -> [...]."""
    return _of[type(x)].take_last(x, index)


def take_row(x: Array, index: Array) -> Array:
    """x[..., index, :]: x [..., n, m] and integers [...] -> [..., m]."""
    return _of[type(x)].take_row(x, index)


def gather(x: Array, index: Array) -> Array:
    """x[b, index[b]] for every b: x [B, n, ...] and integers [B, m] -> [B, m, ...]."""
    return _of[type(x)].gather(x, index)


def split_last(x: Array, sizes: Sequence[int]) -> Sequence[Array]:
    """x [..., sum of sizes] in pieces [..., size] along its last axis."""
    return _of[type(x)].split_last(x, sizes)


def linear_binning(place: Array, weight: Array, n: int) -> Array:
    """Each weight, shared between the two of n bins that its place lies between, the nearer one getting more.

    place: [..., M], from 0 to n - 1; weight: [..., M] -> [..., n], whose sum is that of the weights.
    """
    return _of[type(place)].linear_binning(place, weight, n)


def linear_recurrence(x: Array, decay: Array, last: Array) -> Array:
    """y[t] = x[t] + decay[t] * y[t + 1], backwards from y[T] = last [...]; x and decay [T, ...] -> y [T, ...]."""
    return _of[type(x)].linear_recurrence(x, decay, last)


def scan(step: Callable[..., Array], start: Array, inputs: Sequence[Array]) -> Array:
    """y[t] = step(y[t - 1], *[x[t] for x in inputs]) from y[-1] = start [...]; inputs [T, ...] -> y [T, ...].

    Gradients flow through all steps. Compilers see one step, but for torch's.
    """
    return _of[type(start)].scan(step, start, inputs)


def gradient(function: Callable[[Array], Array], x: Array) -> Array:
    """The gradient of the sum of function(x) by x, of the shape of x. It can be differentiated again.

    In NumPy by central differences in float64.
    """
    return _of[type(x)].gradient(function, x)
