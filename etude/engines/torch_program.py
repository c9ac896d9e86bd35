"""The steps of a traced program as an ExportedProgram of torch."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

from etude import ops
from etude.ops.tracing import Traced, mapped, steps


class _TracedModule(torch.nn.Module):
    """Computes outputs by name of inputs [N, ...] by name, as `ops` does in torch. Constants are buffers, by name."""

    def __init__(self, outputs: Mapping[str, Traced]):
        super().__init__()
        self._outputs, self._steps = dict(outputs), steps(outputs.values())
        self._buffers_of: dict[Traced, str] = {}
        for i, step in enumerate(self._steps):
            if not step.varies:
                self._buffers_of[step] = name = (step.name or f"constant{i}").replace(".", "_")
                self.register_buffer(name, torch.from_numpy(np.array(step.value)))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """See the class."""
        found: dict[Traced, Any] = {step: getattr(self, name) for step, name in self._buffers_of.items()}
        for step in self._steps:
            if step.operation:
                arguments = mapped(lambda x: found[x] if isinstance(x, Traced) else x, step.arguments)
                function = getattr(operator, f"__{step.operation}__", None) or getattr(ops, step.operation)
                found[step] = function(*arguments)
            elif step.varies:
                found[step] = inputs[step.name]
        return {name: found[step] for name, step in self._outputs.items()}


def save(outputs: Mapping[str, Traced], examples: Mapping[str, np.ndarray], file: BinaryIO) -> None:
    """Write the program of these outputs, which takes as many rows as it is given."""
    given = {name: torch.from_numpy(value) for name, value in examples.items()}
    rows = torch.export.Dim("N")
    program = torch.export.export(
        _TracedModule(outputs).eval(), (given,), dynamic_shapes=({name: {0: rows} for name in given},)
    )
    torch.export.save(program, file)  # type: ignore[arg-type]
