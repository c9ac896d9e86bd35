"""The head of an autoregressive policy: logits of each choice, given those before it.

Written once over `ops`, as `Architecture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude import ops
from etude.base.spaces import Box
from etude.networks.architecture import ACTIVATION_FUNCTIONS, Architecture
from etude.networks.layers import Parameter, draw_all
from etude.networks.specs import Mlp
from etude.networks.units import LayerUnits, Record


class ConditionalArchitecture:
    """For each part of an action a small network over what the policy's network computes for it and the one-hot choices
    of the parts before it; see `losses.distributions.Conditional`. All combinations of these are evaluated.

    sizes: how many choices each part has. spec: its hidden layers; the first one is `inputs // len(sizes)` wide and
    adds an embedding of each earlier choice to what the policy's network computes for the part.
    """

    portable = True

    def __init__(self, sizes: Sequence[int], spec: Mlp):
        self.sizes: tuple[int, ...] = tuple(sizes)
        self.width: int = spec.widths[0]
        self.spec: Mlp = spec
        self.inputs: int = len(self.sizes) * self.width
        self.noise: dict[str, tuple[int, ...]] = {}
        self._activation = ACTIVATION_FUNCTIONS[spec.activation]
        after, hidden = Mlp(spec.widths[1:], spec.activation, spec.initializer), Box(-1, 1, (self.width,), np.float32)
        self._after = [Architecture(after, hidden, n, gain=0.01, prefix=f"part{i}.") for i, n in enumerate(self.sizes)]
        self.parameters: dict[str, Parameter] = {}
        for i, architecture in enumerate(self._after):
            for j, n in enumerate(self.sizes[:i]):  # i one-hot vectors: i inputs that are 1
                self.parameters[f"part{i}.choice{j}"] = Parameter((n, self.width), "fan_in", i, 1.0)
            self.parameters |= architecture.parameters

    def __call__(self, values: Mapping[str, Any], x: Any) -> tuple[Any, ...]:
        """Logits of part i for every combination of the choices before it, [*batch, P_i, n_i], of [*batch, inputs]."""
        batch = (-1, *tuple(x.shape)[1:-1])
        return tuple(self._part(values, i, ops.reshape(x, (-1, self.inputs)), batch) for i in range(len(self.sizes)))

    def _part(self, values: Mapping[str, Any], i: int, x: Any, batch: tuple[int, ...]) -> Any:
        hidden = ops.expand_dims(x[:, i * self.width : (i + 1) * self.width], 1)
        combinations = None
        for j in range(i):
            choice = values[f"part{i}.choice{j}"]
            if combinations is not None:
                choice = ops.reshape(ops.expand_dims(combinations, 1) + ops.expand_dims(choice, 0), (-1, self.width))
            combinations = choice
        hidden = self._activation(hidden if combinations is None else hidden + combinations)
        logits = self._after[i](values, ops.reshape(hidden, (-1, self.width)))
        return ops.reshape(logits, (*batch, int(hidden.shape[1]), self.sizes[i]))

    def recording(self, record: Record) -> ConditionalArchitecture:
        """The same: no layer of it is mutated."""
        return self

    def layer_units(self) -> dict[str, LayerUnits]:
        """None: no layer of it is mutated."""
        return {}

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values by name, float32."""
        return draw_all(self.parameters, rng)
