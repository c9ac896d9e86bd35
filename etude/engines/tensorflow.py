"""Keras on TensorFlow: the whole learn call is one function with a loop in its graph, compiled by XLA."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from etude.base.cores import Busy
from etude.base.forks import check_home
from etude.base.spaces import Space
from etude.engines.devices import decide, threads_for
from etude.engines.parameter_layout import Arrays, ParameterLayout
from etude.networks.network import Part


class TensorFlowBackend:
    """See `functional.Backend`."""

    name = "tensorflow"

    def __init__(self, device: str, busy: Busy = Busy(), xla: bool = True):  # noqa: B008  (a tuple)
        self.device: str = device
        self.compile_seconds: float = 0.0
        self.compiled_for: tuple[Any, ...] = ()
        self._busy, self._xla = busy, xla

    def settle(self, layout: ParameterLayout) -> None:
        threads = threads_for(layout.initial.values(), self._busy.learning)
        if threads is not None and "TF_NUM_INTRAOP_THREADS" not in os.environ:
            with contextlib.suppress(RuntimeError):  # TensorFlow has computed in this process before
                tf.config.threading.set_intra_op_parallelism_threads(threads)
        self.device = decide(self.device, len(tf.config.list_physical_devices("GPU")), layout)
        self.compiled_for = (self.device, self._xla)
        kind, _, number = self.device.partition(":")
        self._place = "/CPU:0" if kind == "cpu" else f"/GPU:{number}"

    def wrap_module(self, factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...], seed: int) -> Part:
        from etude.engines import keras

        return keras.wrap_module(factory, inputs, outputs, seed)

    def compile(self, function: Any) -> Any:
        compiled = tf.function(function, jit_compile=self._xla, autograph=False)
        traced: dict[tuple[Any, ...], Any] = {}  # by the shapes of what was passed

        def call(own: Any, *passed: Any) -> Any:
            check_home(self.name)
            # A tf.function takes longer to find the trace for its arguments than a small step takes to compute; a
            # NumPy array says its shape sooner than a tensor.
            shapes = tuple((x.shape, x.dtype) for x in tf.nest.flatten(passed))
            tensors = self.put(passed)
            with tf.device(self._place):
                if shapes in traced:
                    return traced[shapes](own, *tensors)
                began = time.perf_counter()
                traced[shapes] = compiled.get_concrete_function(own, *tensors)
                found = traced[shapes](own, *tensors)
                self.compile_seconds += time.perf_counter() - began
                return found

        return call

    def gradients(self, losses: Any, values: Arrays, groups: dict[str, tuple[str, ...]]) -> tuple[Any, Arrays]:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            for names in groups.values():
                tape.watch([values[name] for name in names])
            scalars, more = losses(values)
        gradients: Arrays = {}
        for group, names in groups.items():
            own = {name: values[name] for name in names}
            gradients |= tape.gradient(scalars[group], own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return more, gradients

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        return tf.cond(condition, one, other)

    def scan(self, step: Any, carry: Any, inputs: Any, constant: Any) -> tuple[Any, Any]:
        k = tf.nest.flatten(inputs)[0].shape[0]
        # Traced before the loop, which then calls it: what it returns has to be known, and tracing takes long.
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, (carry, constant))
        slices = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), inputs)
        traced = tf.function(step, autograph=False).get_concrete_function(specs[0], slices, specs[1])
        outputs = traced.structured_outputs[1]

        def body(i: Any, carry: Any, arrays: list[Any]) -> Any:
            carry, outputs = traced(carry, tf.nest.map_structure(lambda x: x[i], inputs), constant)
            return i + 1, carry, [array.write(i, x) for array, x in zip(arrays, _present(outputs), strict=True)]

        arrays = [tf.TensorArray(x.dtype, k, element_shape=x.shape) for x in _present(outputs)]
        _, carry, arrays = tf.while_loop(
            lambda i, *_: i < k, body, (tf.constant(0), carry, arrays), maximum_iterations=k
        )
        stacked = iter([array.stack() for array in arrays])
        return carry, tuple(None if x is None else next(stacked) for x in outputs)

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        body = lambda i, *carry: (i + 1, *step(carry))  # noqa: E731
        return tf.while_loop(lambda i, *_: i < times, body, (tf.constant(0), *carry), maximum_iterations=times)[1:]

    def put(self, tree: Any) -> Any:
        check_home(self.name)
        with tf.device(self._place):
            return tf.nest.map_structure(tf.convert_to_tensor, tree)

    def numpy(self, tree: Any) -> Any:
        return tf.nest.map_structure(lambda x: np.array(x), tree)


def _present(outputs: tuple[Any, ...]) -> list[Any]:
    return [x for x in outputs if x is not None]
