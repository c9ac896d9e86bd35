"""What a `SimBa` spec means for one space and one number of outputs: residual blocks of dense layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from etude import ops
from etude.base.spaces import Space
from etude.networks.architecture import ACTIVATION_FUNCTIONS, Architecture
from etude.networks.encoding import leaves, to_vector, width
from etude.networks.layers import Dense, LayerUnits, Norm, affine, normalised
from etude.networks.specs import Mlp, SimBa


class ResidualArchitecture(Architecture):
    """A dense layer, blocks that each add a function of the normalised stream to it, and a layer of outputs over the
    normalised stream. Lee et al. 2024, arXiv:2410.09754, section 4.1.

    outputs, members, gain: see `Architecture`.
    """

    def __init__(
        self,
        spec: SimBa,
        space: Space,
        outputs: int | tuple[int, ...] | None,
        members: int | None = None,
        gain: float = 1.0,
    ):
        self.spec: Any = Mlp((spec.width,), spec.activation, spec.initializer)  # of each layer
        self.space: Space = space
        self.members: int | None = members
        self.parameters, self.noise, self.statistics = {}, {}, ()
        self.dropout: int = 0
        self.portable: bool = True
        self._prefix, self._images = "", []
        self._activation, self._affine = ACTIVATION_FUNCTIONS[spec.activation], affine
        self._vector_spaces = leaves(space)
        self._vectors = [(path, to_vector(part)) for path, part in self._vector_spaces]
        inputs = sum(width(part) for _, part in self._vector_spaces)
        self._trunk, _ = self._add_chain("", inputs, (spec.width,), 0, 1.0)
        self._blocks: list[tuple[Norm, list[Dense]]] = []
        for i in range(spec.blocks):
            norm = self._add_norm(f"block{i}", spec.width, 0)
            wide, _ = self._add_chain(f"block{i}.", spec.width, (spec.expansion * spec.width,), 0)
            narrow, _ = self._add_chain(f"block{i}.", spec.expansion * spec.width, (spec.width,), 1, 1.0)
            self._blocks.append((norm, [*wide, *narrow]))
        self._last = self._add_norm("last", spec.width, 0)
        self.shape = outputs if isinstance(outputs, tuple) else (spec.width if outputs is None else outputs,)
        self.outputs: int = math.prod(self.shape)
        self._heads = [] if outputs is None else [self._add_chain("", spec.width, (self.outputs,), 1, gain)[0]]

    def _dense(self, values: Mapping[str, Any], x: Any, moved: dict[str, Any] | None = None) -> Any:
        x = self._affine(values, self._trunk[0], x)
        for norm, (wide, narrow) in self._blocks:
            y = self._activation(self._affine(values, wide, normalised(values, norm, x)))
            x = x + self._affine(values, narrow, y)
        x = normalised(values, self._last, x)
        for (head,) in self._heads:
            x = self._affine(values, head, x)
        return x if len(self.shape) == 1 else ops.reshape(x, (-1, *self.shape))

    def layer_units(self) -> dict[str, LayerUnits]:
        dense = [*self._trunk, *(layer for _, block in self._blocks for layer in block), *(x for (x,) in self._heads)]
        return {layer.name: LayerUnits.of(layer, self.parameters) for layer in dense}
