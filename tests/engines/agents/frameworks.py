"""Arrays and gradients of each engine's framework, compiled where its engine compiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np


class _Torch:
    def __init__(self) -> None:
        import torch

        self._torch = torch

    def array(self, x: np.ndarray) -> Any:
        return self._torch.tensor(x)

    def numpy(self, x: Any) -> np.ndarray:
        return x.detach().numpy()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def gradients(self, function: Callable[..., Any], *inputs: np.ndarray) -> list[np.ndarray]:
        tensors = [self.array(x).requires_grad_() for x in inputs]
        total = function(*tensors).sum() + sum(0 * x.sum() for x in tensors)
        return [gradient.numpy() for gradient in self._torch.autograd.grad(total, tensors)]


class _Jax:
    def __init__(self) -> None:
        os.environ["KERAS_BACKEND"] = "jax"
        import jax

        self._jax = jax

    def array(self, x: np.ndarray) -> Any:
        return self._jax.numpy.asarray(x)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._jax.jit(function)

    def gradients(self, function: Callable[..., Any], *inputs: np.ndarray) -> list[np.ndarray]:
        gradient = self._jax.grad(lambda *arrays: function(*arrays).sum(), tuple(range(len(inputs))))
        return [np.asarray(x) for x in self._jax.jit(gradient)(*inputs)]


class _TensorFlow:
    def __init__(self) -> None:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import tensorflow

        self._tf = tensorflow

    def array(self, x: np.ndarray) -> Any:
        return self._tf.constant(x)

    def numpy(self, x: Any) -> np.ndarray:
        return x.numpy()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._tf.function(function, jit_compile=True, autograph=False)

    def gradients(self, function: Callable[..., Any], *inputs: np.ndarray) -> list[np.ndarray]:
        @self._tf.function(jit_compile=True, autograph=False)
        def run(arrays: list) -> list:
            with self._tf.GradientTape() as tape:
                tape.watch(arrays)
                total = self._tf.reduce_sum(function(*arrays))
            return tape.gradient(total, arrays, unconnected_gradients="zero")

        return [x.numpy() for x in run([self.array(x) for x in inputs])]


FRAMEWORKS = {"torch": _Torch, "jax": _Jax, "tensorflow": _TensorFlow}
