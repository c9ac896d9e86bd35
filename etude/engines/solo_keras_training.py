"""Training an agent of one object with optimizers of Keras, whichever framework is below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import numpy as np

from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.errors import ConfigError
from etude.engines.solo_keras import KerasVariables, tensors, value_of
from etude.engines.solo_object import Bound, Recorder, each, single
from etude.engines.solo_param import check_trained, grouped


class KerasParts:
    """The variables of an agent by what trains them.

    groups: for each optimizer, what it trains. trained: all of these. others: all other variables.
    """

    def __init__(self, held: KerasVariables, optimizers: Sequence[Any]):
        self.held, self.agent, self.optimizers = held, held.agent, tuple(optimizers)
        groups = grouped(self.agent, self.optimizers, keras.Variable) if self.optimizers else []
        self.groups = [[variable for variable in group if variable.trainable] for group in groups]
        check_trained(self.agent, self.groups)
        for optimizer, group in zip(self.optimizers, self.groups, strict=True):
            _build(optimizer, group)
        self.trained = list({id(variable): variable for group in self.groups for variable in group}.values())

    @property
    def others(self) -> list[Any]:
        """The variables that no loss trains."""
        trained = {id(variable) for variable in self.trained}
        return [variable for variable in self.held.variables.values() if id(variable) not in trained]

    def settings(self) -> tuple:
        """What the optimizers' code holds as constants."""
        return tuple(
            (name, value)
            for optimizer in self.optimizers
            for name, value in sorted(vars(optimizer).items())
            if not name.startswith("_") and isinstance(value, float | int | str | None)
        )

    def state(self) -> dict[str, Any]:
        """The variables of each optimizer, by position."""
        found = [{str(i): value_of(v) for i, v in enumerate(optimizer.variables)} for optimizer in self.optimizers]
        return {"optimizers": found}

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where these are not the variables of such optimizers."""
        for optimizer, saved in zip(self.optimizers, held["optimizers"].items(len(self.optimizers)), strict=True):
            values = saved.fields(str(i) for i in range(len(optimizer.variables)))
            for variable, stored in zip(optimizer.variables, values.values(), strict=True):
                own = value_of(variable)
                least = 0 if variable.name.endswith("velocity") or own.dtype.kind in "iu" else None  # squares, counts
                stored.array(own.dtype, own.shape, least, any_width=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Give the optimizers' variables back their values."""
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            for i, variable in enumerate(optimizer.variables):
                variable.assign(values[str(i)])


def _build(optimizer: Any, group: list[Any]) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(
            f"An agent in Keras was given a {type(optimizer).__module__}.{type(optimizer).__name__} to train with; "
            "expected a keras.optimizers.Optimizer, such as keras.optimizers.Adam()."
        )
    if not optimizer.built:
        optimizer.build(group)
    known = {id(variable) for variable in optimizer._trainable_variables}
    if not {id(variable) for variable in group} <= known:
        raise ConfigError(
            f"The optimizer {optimizer.name!r} was made for other variables than those in param: it has trained "
            "another agent. Give each agent an optimizer of its own."
        )


class Program(Protocol):
    """What differs between the frameworks below Keras: see `solo.SoloBackend` for what it does."""

    name: str
    device: str
    traces: int

    def forget(self) -> None:
        """Compile anew: variables were added."""

    def act(self, observation: Any) -> Any: ...
    def rewards(self, arguments: Any) -> Any: ...
    def learn(self, arguments: Any, weight: np.ndarray) -> Any: ...


class KerasSolo:
    """See `solo_engine.SoloBackend`."""

    busy = Busy()  # not read: XLA settles its threads when a process computes for the first time

    def __init__(self, parts: KerasParts, program: Program):
        self.held, self._parts, self._program = parts.held, parts, program
        self.trains, self._prepared = bool(parts.optimizers), False
        self.name, self.device = program.name, program.device
        self.act, self.rewards, self.learn = program.act, program.rewards, program.learn
        self.state, self.check_state, self.restore = parts.state, parts.check_state, parts.restore

    @property
    def traces(self) -> int:
        """How often the loss was traced."""
        return self._program.traces

    def update_param(self) -> None:
        """Call the agent's method, eagerly."""
        self._parts.agent.update_param()

    def prepare(self, arguments: Any) -> None:
        """Call the loss once where networks that only it uses are not built."""
        if not self._prepared:
            first = tensors(each(lambda x: x[0], arguments))
            recorder = Recorder(keras.ops.ones(length(first)))
            if self.held.build(lambda: Bound(self._parts.agent).copy({}, recorder)(*first)):
                self._program.forget()
            self._prepared = True


def padded(tree: Any, rows: int) -> Any:
    """Arrays [n, ...] as [rows, ...]: the last row is repeated, so that what is computed from it is harmless."""

    def pad(x: np.ndarray) -> np.ndarray:
        return x if len(x) == rows else np.concatenate([x, np.repeat(x[-1:], rows - len(x), 0)])

    return each(lambda x: pad(single(x)), tree)


def next_power(n: int) -> int:
    """The smallest power of two that is not below n: few sizes are compiled."""
    return 1 << (n - 1).bit_length()


def length(tree: Any) -> int:
    """The number of rows of the arrays in a tree."""
    sizes: list[int] = []
    each(lambda x: sizes.append(len(x)), tree)
    return sizes[0]
