"""What an agent of one object holds in torch: parameters and buffers by name, and the layers of its networks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.engines.solo_object import find
from etude.engines.solo_param import flat
from etude.networks.dense import Activation, Affine, Flatten, Layer
from etude.protocols import Weights

_NOTHING = (nn.Identity, nn.Dropout)  # what does nothing when a network is evaluated
_ACTIVATIONS: dict[type, str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.ELU: "elu", nn.SiLU: "silu", nn.Softplus: "softplus",
    nn.Softmax: "softmax", nn.LogSoftmax: "log_softmax",
}  # fmt: skip


class TorchVariables:
    """The parameters and buffers that an agent's attributes hold. They are the user's own: their values are read and
    written in place."""

    def __init__(self, agent: Any):
        self.agent = agent
        found = find(agent, (nn.Module, torch.Tensor))
        self._holders = list(found.values())
        self.variables: dict[str, torch.Tensor] = {}
        self.named: dict[int, str] = {}  # names by identity
        for path, holder in found.items():
            for name, variable in _variables(path, holder):
                if self.named.setdefault(id(variable), name) == name:
                    self.variables[name] = variable

    @property
    def names(self) -> tuple[str, ...]:
        """Of all variables."""
        return tuple(self.variables)

    @property
    def trained(self) -> tuple[str, ...]:
        """Of those in `param`."""
        return tuple(dict.fromkeys(self.named[id(variable)] for variable in flat(self.agent.param, torch.Tensor)))

    def read(self, names: Iterable[str]) -> Weights:
        """These variables, in NumPy."""
        return {name: self.variables[name].detach().cpu().numpy().copy() for name in names}

    @torch.no_grad()
    def write(self, weights: Weights) -> None:
        """Give variables these values."""
        for name, value in weights.items():
            self.variables[name].copy_(torch.as_tensor(np.array(value)))

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that has dense layers and activations only, in the order it lists them."""
        modules = [one for one in self._holders if isinstance(one, nn.Module)]
        chains = [self._chain(part) for module in modules for part in module.modules()]
        return [tuple(chain) for chain in chains if chain]

    def _chain(self, module: nn.Module) -> list[Layer] | None:
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else self.named[id(module.bias)]
            return [Affine(self.named[id(module.weight)], bias, transposed=True)]
        if isinstance(module, _NOTHING):
            return []
        if isinstance(module, nn.Flatten):
            return [Flatten()]
        if isinstance(module, nn.GELU):
            return [Activation("gelu" if module.approximate == "none" else "gelu_tanh")]
        if type(module) in _ACTIVATIONS:  # odd settings of theirs show when the chain is compared with the network
            return [Activation(_ACTIVATIONS[type(module)])]
        parts = [self._chain(part) for part in module.children()]
        return None if not parts or None in parts else [one for part in parts for one in part or ()]


def _variables(path: str, holder: nn.Module | torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    if isinstance(holder, torch.Tensor):
        return [(path, holder)] if holder.is_leaf else []
    named = (*holder.named_parameters(), *holder.named_buffers())
    return [(f"{path}.{name}", value) for name, value in named]
