"""Recurrent cells: from their input and state to the next state. A state is one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from etude import ops
from etude.networks.layers import Parameter

Values = Mapping[str, Any]


class Cell(Protocol):
    """What a step does with a state [B, M]."""

    state_size: int  # numbers
    parameters: dict[str, Parameter]

    def project(self, values: Values, x: Any) -> Any:
        """The part of a step that needs no state, [B, inputs] -> [B, gates * units]: all times at once."""

    def step(self, values: Values, projected: Any, state: Any) -> Any:
        """The next state [B, M]."""

    def output(self, state: Any) -> Any:
        """What the layers after the cell see of states [..., M]: [..., units]."""


class Gru:
    """Gated recurrent unit. Cho et al. 2014, arXiv:1406.1078; the reset gate is applied after the matrix product, as in
    torch and Keras. Gates in the order reset, update, new.

    inputs: width of what is fed in. initializer: of the input weights; see `Mlp`.
    """

    def __init__(self, inputs: int, units: int, initializer: str):
        self.state_size = self._units = units
        self.parameters: dict[str, Parameter] = _parameters(inputs, units, 3, initializer)
        self.parameters["cell.memory.bias"] = Parameter((3 * units,), "zeros", units, 1.0)

    def project(self, values: Values, x: Any) -> Any:
        return ops.affine(x, values["cell.input.weight"], values["cell.input.bias"])

    def step(self, values: Values, projected: Any, state: Any) -> Any:
        n = self._units
        remembered = ops.affine(state, values["cell.memory.weight"], values["cell.memory.bias"])
        (gates, candidate), (memory_gates, recalled) = (ops.split_last(x, (2 * n, n)) for x in (projected, remembered))
        reset, update = ops.split_last(ops.sigmoid(gates + memory_gates), (n, n))
        new = ops.tanh(candidate + reset * recalled)
        return new + update * (state - new)

    def output(self, state: Any) -> Any:
        return state


class Lstm:
    """Long short-term memory with a forget gate, whose bias starts at 1. Hochreiter & Schmidhuber 1997,
    doi:10.1162/neco.1997.9.8.1735; Gers et al. 2000, doi:10.1162/089976600300015015; Jozefowicz et al. 2015, PMLR 37.

    Gates in the order input, forget, cell, output; a state is the output and, after it, the cell. Arguments as of
    `Gru`.
    """

    def __init__(self, inputs: int, units: int, initializer: str):
        self.state_size: int = 2 * units
        self._units = units
        self.parameters: dict[str, Parameter] = _parameters(inputs, units, 4, initializer)
        self.parameters["cell.input.bias"] = Parameter((4 * units,), "forget", units, 1.0)

    def project(self, values: Values, x: Any) -> Any:
        return ops.affine(x, values["cell.input.weight"], values["cell.input.bias"])

    def step(self, values: Values, projected: Any, state: Any) -> Any:
        n = self._units
        hidden, cell = ops.split_last(state, (n, n))
        gates = projected + ops.matmul(hidden, values["cell.memory.weight"])
        enter, forget, candidate, output = ops.split_last(gates, (n, n, n, n))
        cell = ops.sigmoid(forget) * cell + ops.sigmoid(enter) * ops.tanh(candidate)
        return ops.concatenate([ops.sigmoid(output) * ops.tanh(cell), cell], -1)

    def output(self, state: Any) -> Any:
        return state[..., : self._units]


CELLS: dict[str, type[Gru] | type[Lstm]] = {"gru": Gru, "lstm": Lstm}

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
