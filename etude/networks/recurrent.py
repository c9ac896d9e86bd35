"""What a `Recurrent` spec means: cells, from their input and their state, one vector, to the next state; one step, and
the same steps over whole sequences. Written once over `ops`, as `Architecture`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from etude import ops
from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.base.trees import Tree
from etude.networks.architecture import Architecture
from etude.networks.layers import LayerUnits, Parameter, Record
from etude.networks.specs import Mlp, Recurrent, Transformer
from etude.networks.transformer import TransformerArchitecture

Values = Mapping[str, Any]


class _Gru:
    """Gated recurrent unit. Cho et al. 2014, arXiv:1406.1078; the reset gate is applied after the matrix product, as in
    torch and Keras. Gates in the order reset, update, new.

    step: the next state [B, M], from what `RecurrentArchitecture` projects. output: what the layers after the cell see
    of states [..., M]: [..., units].

    inputs: width of what is fed in. initializer: of the input weights; see `Mlp`.
    """

    def __init__(self, inputs: int, units: int, initializer: str):
        self.state_size = self._units = units
        self.parameters: dict[str, Parameter] = _parameters(inputs, units, 3, initializer)
        self.parameters["cell.memory.bias"] = Parameter((3 * units,), "zeros", units, 1.0)

    def step(self, values: Values, projected: Any, state: Any) -> Any:
        n = self._units
        remembered = ops.affine(state, values["cell.memory.weight"], values["cell.memory.bias"])
        (gates, candidate), (memory_gates, recalled) = (ops.split_last(x, (2 * n, n)) for x in (projected, remembered))
        reset, update = ops.split_last(ops.sigmoid(gates + memory_gates), (n, n))
        new = ops.tanh(candidate + reset * recalled)
        return new + update * (state - new)

    def output(self, state: Any) -> Any:
        return state


class _Lstm:
    """Long short-term memory with a forget gate, whose bias starts at 1. Hochreiter & Schmidhuber 1997,
    doi:10.1162/neco.1997.9.8.1735; Gers et al. 2000, doi:10.1162/089976600300015015; Jozefowicz et al. 2015, PMLR 37.

    Gates in the order input, forget, cell, output; a state is the output and, after it, the cell. Arguments as of
    `_Gru`.
    """

    def __init__(self, inputs: int, units: int, initializer: str):
        self.state_size: int = 2 * units
        self._units = units
        self.parameters: dict[str, Parameter] = _parameters(inputs, units, 4, initializer)
        self.parameters["cell.input.bias"] = Parameter((4 * units,), "forget", units, 1.0)

    def step(self, values: Values, projected: Any, state: Any) -> Any:
        n = self._units
        hidden, cell = ops.split_last(state, (n, n))
        gates = projected + ops.matmul(hidden, values["cell.memory.weight"])
        enter, forget, candidate, output = ops.split_last(gates, (n, n, n, n))
        cell = ops.sigmoid(forget) * cell + ops.sigmoid(enter) * ops.tanh(candidate)
        return ops.concatenate([ops.sigmoid(output) * ops.tanh(cell), cell], -1)

    def output(self, state: Any) -> Any:
        return state[..., : self._units]


CELLS: dict[str, type[_Gru] | type[_Lstm]] = {"gru": _Gru, "lstm": _Lstm}

CELL_AXES: dict[str, tuple[str, ...]] = {
    "cell.input.weight": ("inputs", "gates"),
    "cell.input.bias": ("gates",),
    "cell.memory.weight": ("recurrent", "gates"),
    "cell.memory.bias": ("gates",),
}  # what the axes of a cell's parameters count; see `units.LayerUnits`


def _parameters(inputs: int, units: int, gates: int, initializer: str) -> dict[str, Parameter]:
    return {
        "cell.input.weight": Parameter((inputs, gates * units), initializer, inputs, 1.0),
        "cell.input.bias": Parameter((gates * units,), "zeros", inputs, 1.0),
        "cell.memory.weight": Parameter((units, gates * units), "orthogonal", units, 1.0),
    }


class RecurrentArchitecture:
    """A `Recurrent` spec on a space: parameter shapes, a step, and sequences of steps. M is the size of a state, which
    is zeros where an episode begins.

    outputs: width of the last layer. gain: factor on its initial weights.
    """

    def __init__(self, spec: Recurrent, space: Space, outputs: int, gain: float = 1.0):
        self.spec: Recurrent = spec
        before = spec.before
        self._before = Architecture(before, space, None, prefix="before.")
        self._cell = CELLS[spec.cell](self._before.outputs, spec.units, before.initializer)
        after = Mlp(
            spec.widths, before.activation, before.initializer,
            layer_norm=before.layer_norm, norm_groups=spec.norm_groups, skips=spec.skips,
        )  # fmt: skip
        hidden = gym_spaces.Box(-1, 1, (spec.units,))
        self._after = Architecture(after, hidden, outputs, gain=gain, prefix="after.")
        self.state_size: int = self._cell.state_size
        self.parameters: dict[str, Parameter] = self._before.parameters | self._cell.parameters | self._after.parameters

    def _project(self, values: Mapping[str, Any], x: Any) -> Any:
        """The part of a step that needs no state, [B, inputs] -> [B, gates * units]: all times at once."""
        return ops.affine(x, values["cell.input.weight"], values["cell.input.bias"])

    def step(self, values: Mapping[str, Any], observation: Tree, state: Any) -> tuple[Any, Any]:
        """(outputs [B, outputs], next state [B, M]) of observations [B, ...] and states [B, M]."""
        projected = self._project(values, self._before(values, observation))
        state = self._cell.step(values, projected, state)
        return self._after(values, self._cell.output(state)), state

    def unroll(
        self, values: Mapping[str, Any], observation: Tree, state: Any, first: Any = None, trained: Any = None
    ) -> tuple[Any, Any]:
        """(outputs [B, L, outputs], the state after each step [B, L, M]) of L consecutive steps.

        observation: [B, L, ...]. state: [B, M] before the first step; None: zeros. first: [B, L], 1 where an episode
        begins. None: nowhere.
        trained: [B, L], 1 at the steps that are learned from; out of the others, no gradient flows into what came
        before. None: all are.
        """
        length, cell = trees.leaves(observation)[0].shape[1], self._cell
        flat = trees.map(lambda x: ops.reshape(x, (-1, *x.shape[2:])), observation)
        projected = self._project(values, self._before(values, flat))
        by_time = ops.swapaxes(ops.reshape(projected, (-1, length, projected.shape[-1])), 0, 1)
        if state is None:
            # No cell has fewer gates than its state has numbers
            state = ops.zeros_like(by_time[0][:, : self.state_size])
        told = {"keep": None if first is None else 1.0 - first, "trained": None if trained is None else trained > 0}
        told = {name: ops.expand_dims(ops.swapaxes(x, 0, 1), -1) for name, x in told.items() if x is not None}

        def step(state: Any, projected: Any, *now: Any) -> Any:
            at = dict(zip(told, now, strict=True))
            following = cell.step(values, projected, at["keep"] * state if "keep" in at else state)
            if "trained" not in at:
                return following
            return ops.where(at["trained"], following, ops.stop_gradient(following))

        states = ops.swapaxes(ops.scan(step, state, [by_time, *told.values()]), 0, 1)
        seen = cell.output(states)
        outputs = self._after(values, ops.reshape(seen, (-1, seen.shape[-1])))
        return ops.reshape(outputs, (-1, length, outputs.shape[-1])), states

    def recording(self, record: Record) -> RecurrentArchitecture:
        """The same, which calls `record(name, inputs)` at every layer."""
        recording = copy.copy(self)
        recording._before, recording._after = self._before.recording(record), self._after.recording(record)

        def project(values: Mapping[str, Any], x: Any) -> Any:
            record("cell", x)
            return self._project(values, x)

        recording._project = project  # type: ignore[method-assign]
        return recording

    def layer_units(self) -> dict[str, LayerUnits]:
        """See `Architecture.layer_units`."""
        axes = {name: own for name, own in CELL_AXES.items() if name in self.parameters}
        cell = LayerUnits("cell", "", 0, self.spec.units, axes)
        return {**self._before.layer_units(), "cell": cell, **self._after.layer_units()}

    def input_labels(self, labels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Architecture.input_labels`."""
        before = self._before.input_labels(labels)
        after = self._after.input_labels(labels, labels["cell"])
        return {**before, "cell": before["before."], **after}


def sequence_architecture(
    spec: Any, space: Space, outputs: int, gain: float
) -> RecurrentArchitecture | TransformerArchitecture:
    """What a spec of a network with a recurrent state means on a space; ConfigError for another spec."""
    if isinstance(spec, Transformer):
        return TransformerArchitecture(spec, space, outputs, gain)
    if isinstance(spec, Recurrent):
        return RecurrentArchitecture(spec, space, outputs, gain)
    raise ConfigError(
        f"network is {spec!r}, which keeps no recurrent state; this algorithm expects a spec such as "
        "Recurrent(before=Mlp((64,)), units=64) or Transformer()."
    )
