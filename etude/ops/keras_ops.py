"""`ops` for TensorFlow through keras.ops: eager arrays and graph tensors, and Keras variables on any backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

PRECEDENCE = 2

matmul: Any = ops.matmul
relu: Any = ops.relu
elu: Any = ops.elu
silu: Any = ops.silu
tanh: Any = ops.tanh
sigmoid: Any = ops.sigmoid
softplus: Any = ops.softplus
exp: Any = ops.exp
log: Any = ops.log
log1p: Any = ops.log1p
expm1: Any = ops.expm1
erf: Any = ops.erf
sin: Any = ops.sin
cos: Any = ops.cos
sqrt: Any = ops.sqrt
square: Any = ops.square
abs: Any = ops.abs
sign: Any = ops.sign
rint: Any = ops.round
isfinite: Any = ops.isfinite
zeros_like: Any = ops.zeros_like
ones_like: Any = ops.ones_like
stop_gradient: Any = ops.stop_gradient
cast: Any = ops.cast
minimum: Any = ops.minimum
maximum: Any = ops.maximum
where: Any = ops.where
sum: Any = ops.sum
mean: Any = ops.mean
std: Any = ops.std
max: Any = ops.max
min: Any = ops.min
all: Any = ops.all
argmax: Any = ops.argmax
logsumexp: Any = ops.logsumexp
softmax: Any = ops.softmax
log_softmax: Any = ops.log_softmax
cumsum: Any = ops.cumsum
sort: Any = ops.sort
concatenate: Any = ops.concatenate
stack: Any = ops.stack
reshape: Any = ops.reshape
expand_dims: Any = ops.expand_dims
squeeze: Any = ops.squeeze
swapaxes: Any = ops.swapaxes


def standardised(x: Any, epsilon: float) -> Any:
    x = x - mean(x, -1, keepdims=True)
    return x / sqrt(mean(square(x), -1, keepdims=True) + epsilon)


def conv(x: Any, kernel: Any, stride: int) -> Any:
    return ops.conv(x, kernel, strides=stride, padding="valid", data_format="channels_last")


# fmt: off
def affine(x: Any, w: Any, bias: Any) -> Any: return ops.matmul(x, w) + bias
def pad(x: Any, n: int) -> Any: return ops.pad(x, ((0, 0), (n, n), (n, n), (0, 0)))
def gelu(x: Any) -> Any: return ops.gelu(x, approximate=True)
def linspace(low: float, high: float, n: int, like: Any) -> Any: return ops.linspace(low, high, n, dtype="float32")
def clip(x: Any, low: Any, high: Any) -> Any: return ops.minimum(ops.maximum(x, low), high)
# fmt: on


def attention(query: Any, keys: Sequence[Any], values: Sequence[Any], mask: Any) -> Any:
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, ops.concatenate(keys, 1), ops.concatenate(values, 1)))
    scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
    weights = ops.softmax(ops.where(mask[:, None], scores, -1e30))
    return ops.swapaxes(ops.matmul(weights, value), 1, 2)


def huber(error: Any, width: float) -> Any:
    size = ops.abs(error)
    inner = ops.minimum(size, width)
    return inner * (size - 0.5 * inner)


def one_hot(index: Any, n: int) -> Any:
    return ops.one_hot(ops.cast(index, "int32"), n, dtype="float32")


def take_last(x: Any, index: Any) -> Any:
    # A comparison fuses with what is around it under XLA, where the gradient of a gather is a slow scatter.
    n = x.shape[-1]
    chosen = ops.expand_dims(ops.cast(index, "int32"), -1) == ops.arange(n, dtype="int32")
    return ops.sum(ops.where(chosen, x, ops.zeros_like(x)), -1)


def take_row(x: Any, index: Any) -> Any:
    return ops.sum(x * ops.expand_dims(one_hot(index, x.shape[-2]), -1), -2)  # as above


def gather(x: Any, index: Any) -> Any:
    rows, n = x.shape[:2]
    flat = ops.reshape(x, (rows * n, *x.shape[2:]))
    return ops.take(flat, ops.cast(index, "int32") + n * ops.arange(rows, dtype="int32")[:, None], axis=0)


def split_last(x: Any, sizes: Sequence[int]) -> Sequence[Any]:
    return ops.split(x, list(itertools.accumulate(sizes))[:-1], -1)


def linear_binning(place: Any, weight: Any, n: int) -> Any:
    # Compiled, the comparison of every place with every bin is quicker than writing to the bins one after the other.
    bins = ops.expand_dims(ops.arange(n, dtype=place.dtype), -1)
    distance = ops.abs(ops.expand_dims(place, -2) - bins)  # [..., n, M]
    return ops.sum(ops.relu(1.0 - distance) * ops.expand_dims(weight, -2), -1)


def linear_recurrence(x: Any, decay: Any, last: Any) -> Any:
    # By doubling, in log2(T) steps: after each, a row holds the sum over twice as many rows. Kogge & Stone 1973.
    length, reach = x.shape[0], 1
    x = ops.concatenate([x[:-1], x[-1:] + decay[-1:] * last], 0)
    while reach < length:
        x = ops.concatenate([x[:-reach] + decay[:-reach] * x[reach:], x[-reach:]], 0)
        decay = ops.concatenate([decay[:-reach] * decay[reach:], decay[-reach:]], 0)
        reach *= 2
    return x


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def scan(step: Callable[..., Any], start: Any, inputs: Sequence[Any]) -> Any:
    # TensorFlow's own loop: that of keras.ops lacks the bound that XLA needs to differentiate it.
    import tensorflow as tf

    length = inputs[0].shape[0]

    def body(t: Any, y: Any, found: Any) -> tuple[Any, Any, Any]:
        y = step(y, *(x[t] for x in inputs))
        return t + 1, y, found.write(t, y)

    found = tf.TensorArray(start.dtype, length, element_shape=start.shape)
    return tf.while_loop(lambda t, *_: t < length, body, (tf.constant(0), start, found), maximum_iterations=length)[
        2
    ].stack()
