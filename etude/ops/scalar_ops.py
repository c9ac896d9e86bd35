"""`ops` of Python numbers: the result is a Python number, which takes the precision of the arrays that it meets."""

from __future__ import annotations

import math
from typing import Any

PRECEDENCE = 0

exp: Any = math.exp
log: Any = math.log
log1p: Any = math.log1p
expm1: Any = math.expm1
erf: Any = math.erf
sqrt: Any = math.sqrt
tanh: Any = math.tanh
rint: Any = round
isfinite: Any = math.isfinite
abs = abs
minimum = min
maximum = max


def sigmoid(x: float) -> float:
    e = math.exp(-abs(x))
    return (e if x < 0 else 1) / (1 + e)


# fmt: off
def relu(x: float) -> float: return maximum(x, 0.0)
def softplus(x: float) -> float: return maximum(x, 0.0) + math.log1p(math.exp(-abs(x)))
def square(x: float) -> float: return x * x
def sign(x: float) -> float: return float((x > 0) - (x < 0))
def clip(x: float, low: float, high: float) -> float: return minimum(maximum(x, low), high)
def where(condition: bool, x: float, y: float) -> float: return x if condition else y
def stop_gradient(x: float) -> float: return x
def zeros_like(x: float) -> float: return 0.0
def ones_like(x: float) -> float: return 1.0
def sum(x: float, axis: None = None, keepdims: bool = False) -> float: return x
# fmt: on


mean = max = min = sum


def cast(x: float, dtype: str) -> Any:
    return {"float32": float, "float64": float, "int32": int, "int64": int, "bool": bool}[dtype](x)
