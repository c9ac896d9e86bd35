"""What a `Recurrent` spec means: one step, and the same steps over whole sequences.

Written once over `ops`, as `Architecture`.
"""

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
from etude.networks.cells import CELL_AXES, CELLS
from etude.networks.layers import Parameter, draw_all
from etude.networks.specs import Mlp, Recurrent, Transformer
from etude.networks.transformer import TransformerArchitecture
from etude.networks.units import LayerUnits, Record


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
        self._project = self._cell.project
        self.parameters: dict[str, Parameter] = self._before.parameters | self._cell.parameters | self._after.parameters

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
            state = ops.zeros_like(
                by_time[0][:, : self.state_size]
            )  # no cell has fewer gates than its state has numbers
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
            return self._cell.project(values, x)

        recording._project = project
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

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values by name, float32."""
        return draw_all(self.parameters, rng)


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
