"""`ops` for JAX: eager arrays and tracers. jax.numpy itself: importing Keras takes longer than importing JAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

PRECEDENCE = 2

matmul: Any = jnp.matmul
relu: Any = jax.nn.relu
elu: Any = jax.nn.elu
silu: Any = jax.nn.silu
tanh: Any = jnp.tanh
sigmoid: Any = jax.nn.sigmoid
softplus: Any = jax.nn.softplus
exp: Any = jnp.exp
log: Any = jnp.log
log1p: Any = jnp.log1p
expm1: Any = jnp.expm1
erf: Any = jax.scipy.special.erf
sin: Any = jnp.sin
cos: Any = jnp.cos
sqrt: Any = jnp.sqrt
square: Any = jnp.square
abs: Any = jnp.abs
sign: Any = jnp.sign
rint: Any = jnp.rint
isfinite: Any = jnp.isfinite
zeros_like: Any = jnp.zeros_like
ones_like: Any = jnp.ones_like
stop_gradient: Any = jax.lax.stop_gradient
minimum: Any = jnp.minimum
maximum: Any = jnp.maximum
where: Any = jnp.where
all: Any = jnp.all
argmax: Any = jnp.argmax
softmax: Any = jax.nn.softmax
log_softmax: Any = jax.nn.log_softmax
cumsum: Any = jnp.cumsum
sort: Any = jnp.sort
concatenate: Any = jnp.concatenate
stack: Any = jnp.stack
reshape: Any = jnp.reshape
expand_dims: Any = jnp.expand_dims
squeeze: Any = jnp.squeeze
swapaxes: Any = jnp.swapaxes


def _reduction(function: Any) -> Any:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


sum: Any = _reduction(jnp.sum)
mean: Any = _reduction(jnp.mean)
std: Any = _reduction(jnp.std)
max: Any = _reduction(jnp.max)
min: Any = _reduction(jnp.min)
logsumexp: Any = _reduction(jax.nn.logsumexp)


def standardised(x: Any, epsilon: float) -> Any:
    x = x - mean(x, -1, keepdims=True)
    return x / sqrt(mean(square(x), -1, keepdims=True) + epsilon)


def conv(x: Any, kernel: Any, stride: int) -> Any:
    return jax.lax.platform_dependent(
        x, kernel, cpu=partial(_conv_by_patches, stride=stride), default=partial(_conv, stride=stride)
    )


def _conv(x: Any, kernel: Any, stride: int) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _conv_by_patches(x: Any, kernel: Any, stride: int) -> Any:
    """As one matrix product: within a `lax.scan`, XLA's convolutions take 5 to 25 times as long on a CPU."""
    height, width, channels, filters = kernel.shape
    rows, columns = (x.shape[1] - height) // stride + 1, (x.shape[2] - width) // stride + 1
    below, beside = stride * (rows - 1) + 1, stride * (columns - 1) + 1
    patches = [x[:, i : i + below : stride, j : j + beside : stride] for i in range(height) for j in range(width)]
    product = jnp.concatenate(patches, -1).reshape(-1, height * width * channels) @ kernel.reshape(-1, filters)
    return product.reshape(-1, rows, columns, filters)


# fmt: off
def affine(x: Any, w: Any, bias: Any) -> Any: return jnp.matmul(x, w) + bias
def pad(x: Any, n: int) -> Any: return jnp.pad(x, ((0, 0), (n, n), (n, n), (0, 0)))
def gelu(x: Any) -> Any: return jax.nn.gelu(x, approximate=True)
def linspace(low: float, high: float, n: int, like: Any) -> Any: return jnp.linspace(low, high, n, dtype="float32")
def cast(x: Any, dtype: str) -> Any: return x.astype(jax.dtypes.canonicalize_dtype(dtype))
def clip(x: Any, low: Any, high: Any) -> Any: return jnp.minimum(jnp.maximum(x, low), high)
def gather(x: Any, index: Any) -> Any: return x[jnp.arange(x.shape[0])[:, None], index]
def gradient(function: Callable[[Any], Any], x: Any) -> Any: return jax.grad(lambda x: jnp.sum(function(x)))(x)
# fmt: on


def attention(query: Any, keys: Sequence[Any], values: Sequence[Any], mask: Any) -> Any:
    key, value = jnp.concatenate(keys, 1), jnp.concatenate(values, 1)
    return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])


def huber(error: Any, width: float) -> Any:
    size = abs(error)
    inner = minimum(size, width)
    return inner * (size - 0.5 * inner)


def one_hot(index: Any, n: int) -> Any:
    return jax.nn.one_hot(index, n, dtype="float32")


def take_last(x: Any, index: Any) -> Any:
    # A comparison fuses with what is around it, where the gradient of a gather is a slow scatter.
    chosen = jnp.expand_dims(index, -1) == jnp.arange(x.shape[-1], dtype=index.dtype)
    return jnp.sum(jnp.where(chosen, x, 0.0), -1)


def take_row(x: Any, index: Any) -> Any:
    return jnp.sum(x * jnp.expand_dims(one_hot(index, x.shape[-2]), -1), -2)  # as above


def split_last(x: Any, sizes: Sequence[int]) -> Sequence[Any]:
    return jnp.split(x, list(itertools.accumulate(sizes))[:-1], -1)


def linear_binning(place: Any, weight: Any, n: int) -> Any:
    # Compiled, the comparison of every place with every bin is quicker than writing to the bins one after the other.
    bins = jnp.arange(n, dtype=place.dtype)[:, None]
    distance = jnp.abs(jnp.expand_dims(place, -2) - bins)  # [..., n, M]
    return jnp.sum(relu(1.0 - distance) * jnp.expand_dims(weight, -2), -1)


def uniform(key: Any, low: Any, high: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.uniform(key, shape, minval=low, maxval=high)


def traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(key, *arguments)` returns, as shapes and dtypes: it is traced as a compiler does."""
    return jax.eval_shape(function, jax.random.key(0), *arguments)


def leaves(tree: Any) -> dict[str, tuple[Any, Any]]:
    """The shape and the dtype of each leaf, by where it is."""
    return {jax.tree_util.keystr(path): (x.shape, x.dtype) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def call(owner: Any, name: str, key: Any, *arguments: Any) -> Any:
    """`owner.name(key, *arguments)`, compiled; equal owners share what is. key: of JAX, or a generator of NumPy; handed
    on as whole numbers [2], which states can be saved with."""
    if isinstance(key, jax.Array):
        return getattr(owner, name)(jax.random.key_data(key), *arguments)
    return _compiled(owner, name, jax.random.PRNGKey(int(key.integers(2**32))), *arguments)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(owner: Any, name: str, key: Any, *arguments: Any) -> Any:
    return getattr(owner, name)(key, *arguments)


def linear_recurrence(x: Any, decay: Any, last: Any) -> Any:
    def step(following: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        y = now[0] + now[1] * following
        return y, y

    return jax.lax.scan(step, jnp.broadcast_to(last, x.shape[1:]), (x, decay), reverse=True)[1]


def scan(step: Callable[..., Any], start: Any, inputs: Sequence[Any]) -> Any:
    def advance(y: Any, now: tuple[Any, ...]) -> tuple[Any, Any]:
        y = step(y, *now)
        return y, y

    return jax.lax.scan(advance, start, tuple(inputs))[1]
