"""Modules that a user wrote in Keras, as parts of an agent."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import keras
import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Space, zeros
from etude.base.trees import Tree
from etude.engines.parameter_layout import check_module
from etude.networks.maker import made_by
from etude.networks.network import Part


def require_backend(engine: str) -> None:
    """Raise ConfigError where Keras runs on something else than an engine that needs it."""
    running = keras.backend.backend()
    if running != engine:
        raise ConfigError(
            f"Keras is already running on {running} in this process and cannot change to {engine}. Use "
            f"engine={running!r}, or set KERAS_BACKEND={engine} before keras is imported."
        )


def wrap_module(factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...], seed: int) -> Part:
    """The keras.Model that `factory()` returns, as a part; its first weights come from `seed`."""
    # Keras takes the seeds of initial weights from Python's own generator: seed it, and put it back as it was.
    before = random.getstate()
    random.seed(seed)
    try:
        model = made_by(factory)
        if not isinstance(model, keras.Model | keras.layers.Layer):
            raise NetworkError(
                f"network returned a {type(model).__name__}; the engine {keras.backend.backend()} expects a "
                "keras.Model. For a torch.nn.Module, give engine='torch'."
            )
        two = [trees.map(keras.ops.convert_to_tensor, zeros(space, 2)) for space in inputs]
        check_module(model, [two] if len(inputs) > 1 else two, inputs, outputs)
    finally:
        random.setstate(before)
    return _KerasModule(model, several=len(inputs) > 1)


class _KerasModule(Part):
    """A keras.Model that a user wrote, as a function of its variables.

    several: whether it is called with a tuple of inputs, which it gets as a list, as is Keras's custom.
    """

    portable = in_numpy = False

    def __init__(self, model: Any, several: bool):
        self.model: Any = model
        self._several = several
        held = {f"{i}.{v.name}": v for i, v in enumerate(model.trainable_variables)}
        moving = {f"state{i}.{v.name}": v for i, v in enumerate(model.non_trainable_variables)}
        self._held: dict[str, Any] = held | moving
        values = {name: np.array(keras.ops.convert_to_numpy(v)) for name, v in self._held.items()}
        self.variables: dict[str, Any] = values
        self.frozen: frozenset[str] = frozenset(moving)

    def __call__(self, observation: Tree = None) -> Any:
        inputs, values = list(observation) if self._several else observation, self.variables
        where = contextlib.nullcontext()
        if keras.backend.backend() == "torch":  # where Keras moves all that it reads to a device of its own choice
            where = keras.device(str(trees.leaves(observation)[0].device))
        # Not by `stateless_call`, which passes `training` to a `call` that does not take it.
        with where, keras.StatelessScope([(own, values[name]) for name, own in self._held.items()]) as scope:
            outputs = self.model(inputs, training=self.training)
        own = {name: scope.get_current_value(self._held[name]) for name in values if name in self.frozen}
        self.moved: dict[str, Any] = {name: keras.ops.stop_gradient(value) for name, value in own.items()}
        self.variables = values | self.moved
        return outputs
