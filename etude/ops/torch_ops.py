"""`ops` in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PRECEDENCE = 2

matmul: Any = torch.matmul
relu: Any = torch.relu
elu: Any = functional.elu
silu: Any = functional.silu
tanh: Any = torch.tanh
sigmoid: Any = torch.sigmoid
softplus: Any = functional.softplus
exp: Any = torch.exp
log: Any = torch.log
log1p: Any = torch.log1p
expm1: Any = torch.expm1
erf: Any = torch.erf
sin: Any = torch.sin
cos: Any = torch.cos
sqrt: Any = torch.sqrt
square: Any = torch.square
abs: Any = torch.abs
sign: Any = torch.sign
rint: Any = torch.round
isfinite: Any = torch.isfinite
zeros_like: Any = torch.zeros_like
ones_like: Any = torch.ones_like
stop_gradient: Any = Tensor.detach
cumsum: Any = torch.cumsum
reshape: Any = torch.reshape
expand_dims: Any = torch.unsqueeze
squeeze: Any = torch.squeeze
swapaxes: Any = torch.swapaxes


def affine(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    if w.ndim == 3:
        return torch.baddbmm(bias, x.expand(len(w), *x.shape[-2:]), w)
    return torch.addmm(bias, x, w) if x.ndim == 2 else torch.matmul(x, w) + bias


def conv(x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    return functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), stride=stride).permute(0, 2, 3, 1)


# fmt: off
def pad(x: Tensor, n: int) -> Tensor: return functional.pad(x, (0, 0, n, n, n, n))
def gelu(x: Tensor) -> Tensor: return functional.gelu(x, approximate="tanh")
def cast(x: Tensor, dtype: str) -> Tensor: return x.to(getattr(torch, dtype))
def sum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor: return torch.sum(x, axis, keepdims)
def standardised(x: Tensor, epsilon: float) -> Tensor: return functional.layer_norm(x, x.shape[-1:], eps=epsilon)
def all(x: Tensor, axis: Any = None) -> Tensor: return torch.all(x) if axis is None else torch.all(x, axis)
def argmax(x: Tensor, axis: int = -1) -> Tensor: return torch.argmax(x, axis)
def logsumexp(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor: return torch.logsumexp(x, axis, keepdims)
def softmax(x: Tensor) -> Tensor: return torch.softmax(x, -1)
def log_softmax(x: Tensor) -> Tensor: return torch.log_softmax(x, -1)
def sort(x: Tensor, axis: int = -1) -> Tensor: return torch.sort(x, axis).values
def split_last(x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]: return torch.split(x, list(sizes), -1)
def concatenate(arrays: Sequence[Tensor], axis: int = -1) -> Tensor: return torch.cat(tuple(arrays), axis)
def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor: return torch.stack(tuple(arrays), axis)
# fmt: on


def linspace(low: float, high: float, n: int, like: Tensor) -> Tensor:
    return torch.linspace(low, high, n, dtype=torch.float32, device=like.device)


def _tensor(x: Any, like: Tensor) -> Tensor:
    return x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=like.dtype, device=like.device)


def minimum(x: Any, y: Any) -> Tensor:
    if isinstance(y, float | int):
        return torch.clamp(x, max=y)
    if isinstance(x, float | int):
        return torch.clamp(y, max=x)
    return torch.minimum(_tensor(x, y), _tensor(y, x))


def maximum(x: Any, y: Any) -> Tensor:
    if isinstance(y, float | int):
        return torch.clamp(x, min=y)
    if isinstance(x, float | int):
        return torch.clamp(y, min=x)
    return torch.maximum(_tensor(x, y), _tensor(y, x))


def clip(x: Any, low: Any, high: Any) -> Tensor:
    if isinstance(low, float | int) and isinstance(high, float | int):
        return torch.clamp(x, low, high)
    return minimum(maximum(x, low), high)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    if not isinstance(condition, Tensor):
        like = x if isinstance(x, Tensor) else y
        condition = torch.as_tensor(condition, device=like.device)
    return torch.where(condition, _operand(x, condition), _operand(y, condition))


def _operand(x: Any, condition: Tensor) -> Any:
    return x if isinstance(x, Tensor | float | int) else torch.as_tensor(x, device=condition.device)


def mean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.mean(x if x.is_floating_point() else x.float(), axis, keepdims)


def std(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.std(x, axis, correction=0, keepdim=keepdims)


def max(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.amax(x, () if axis is None else axis, keepdims)


def min(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.amin(x, () if axis is None else axis, keepdims)


def attention(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], mask: Tensor) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query, concatenate(keys, 1), concatenate(values, 1)))
    return functional.scaled_dot_product_attention(query, key, value, mask.unsqueeze(1)).transpose(1, 2)


def huber(error: Tensor, width: float) -> Tensor:
    return functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=width)


def one_hot(index: Tensor, n: int) -> Tensor:
    return (index.unsqueeze(-1) == torch.arange(n, device=index.device)).to(torch.float32)


def take_last(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, -1, index.to(torch.int64).expand(x.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def take_row(x: Tensor, index: Tensor) -> Tensor:
    index = index.to(torch.int64)[..., None, None].expand(*index.shape, 1, x.shape[-1])
    return torch.gather(x, -2, index).squeeze(-2)


def gather(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index.long()]


def linear_binning(place: Tensor, weight: Tensor, n: int) -> Tensor:
    below = place.floor().clamp(max=n - 2)
    above, index = (place - below) * weight, below.to(torch.int64)
    bins = weight.new_zeros(*weight.shape[:-1], n)
    return bins.scatter_add(-1, index, weight - above).scatter_add(-1, index + 1, above)


def linear_recurrence(x: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    # By doubling, in log2(T) steps: after each, a row holds the sum over twice as many rows. Kogge & Stone 1973.
    length, reach = x.shape[0], 1
    x = torch.cat([x[:-1], x[-1:] + decay[-1:] * last])
    while reach < length:
        x = torch.cat([x[:-reach] + decay[:-reach] * x[reach:], x[-reach:]])
        decay = torch.cat([decay[:-reach] * decay[reach:], decay[-reach:]])
        reach *= 2
    return x


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: torch.sum(function(x)))(x)


def scan(step: Callable[..., Tensor], start: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    found, y = [], start
    for now in zip(*(x.unbind() for x in inputs), strict=True):
        y = step(y, *now)
        found.append(y)
    return torch.stack(found)
