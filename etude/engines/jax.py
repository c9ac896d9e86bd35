"""Keras on JAX: the whole learn call is one jitted `lax.scan`."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
from typing import Any

import jax
import numpy as np

from etude.base.cores import Busy
from etude.base.forks import check_home
from etude.base.spaces import Space
from etude.engines.devices import decide, threads_for
from etude.engines.parameter_layout import Arrays, ParameterLayout
from etude.networks.network import Part


class JaxBackend:
    """See `functional.Backend`."""

    name = "jax"

    def __init__(self, device: str, busy: Busy = Busy()):  # noqa: B008  (a tuple)
        self.device: str = device
        self.compile_seconds: float = 0.0
        self.compiled_for: tuple[Any, ...] = ()
        self._busy = busy
        self._process = os.getpid()  # its forks cannot compute, unless nothing ran here

    def settle(self, layout: ParameterLayout) -> None:
        threads = threads_for(layout.initial.values(), self._busy.learning)
        if threads is not None and "NPROC" not in os.environ:
            # XLA makes its threads when JAX computes for the first time in a process, and reads how many from NPROC
            os.environ["NPROC"] = str(threads)
            try:
                jax.devices()
            finally:
                del os.environ["NPROC"]
        gpus = [device for device in jax.devices() if device.platform == "gpu"]
        self.device = decide(self.device, len(gpus), layout)
        self.compiled_for = (self.device,)
        kind, _, number = self.device.partition(":")
        self._device = jax.devices("cpu")[0] if kind == "cpu" else gpus[int(number)]

    def wrap_module(self, factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...], seed: int) -> Part:
        from etude.engines import keras

        keras.require_backend(self.name)
        return keras.wrap_module(factory, inputs, outputs, seed)

    def compile(self, function: Any) -> Any:
        traces: list[None] = []  # since the last call: whether it compiled

        @functools.wraps(function)
        def traced(*arguments: Any) -> Any:
            traces.append(None)
            return function(*arguments)

        compiled = jax.jit(traced)

        def call(*arguments: Any) -> Any:
            if os.getpid() != self._process:
                check_home(self.name)
            began = time.perf_counter()
            found = compiled(*arguments)  # puts arrays where the weights are, in a third of the time of `put`
            if traces:
                self.compile_seconds += time.perf_counter() - began
                traces.clear()
                release_freed_memory()
            return found

        return call

    def gradients(self, losses: Any, values: Arrays, groups: dict[str, tuple[str, ...]]) -> tuple[Any, Arrays]:
        more: Any = None
        gradients: Arrays = {}
        for group, names in groups.items():
            # One differentiation per loss; the compiler merges the forward passes that they have in common.
            def own(trained: Arrays, group: str = group) -> Any:
                scalars, more = losses({**values, **trained})
                return scalars[group], more

            found, more = jax.grad(own, has_aux=True)({name: values[name] for name in names})
            gradients |= found
        return (more if groups else losses(values)[1]), gradients

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        return jax.lax.cond(condition, one, other)

    def scan(self, step: Any, carry: Any, inputs: Any, constant: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda carry, inputs: step(carry, inputs, constant), carry, inputs)

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), carry)

    def put(self, tree: Any) -> Any:
        check_home(self.name)
        return jax.device_put(tree, self._device)

    def numpy(self, tree: Any) -> Any:
        for leaf in jax.tree_util.tree_leaves(tree) if self.device != "cpu" else ():
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()  # all of them before the first is waited for
        return jax.tree_util.tree_map(np.array, tree)


def release_freed_memory() -> None:
    """Give back to the system what the compiler freed and glibc keeps: 60 to 110 MB after a learn call was compiled."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
