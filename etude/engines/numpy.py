"""The engine that only acts: an agent whose networks come from specs, in plain NumPy. Workers, evaluation and serving use it
and import no framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.agent import Agent
from etude.engines.structure import Structure, check_weights
from etude.errors import NetworkError
from etude.networks.network import Maker, Part
from etude.protocols import Weights
from etude.spaces import Space, Spaces
from etude.trees import Tree


def _no_modules(factory: Any, space: Space, outputs: int) -> Part:
    raise NetworkError("NumPy cannot evaluate a torch.nn.Module or keras.Model; use the engine that it was written for.")


class NumpyEngine:
    """Evaluates one agent in NumPy."""

    exportable = True

    def __init__(self, agent: Agent, spaces: Spaces):
        self.spaces = spaces
        make = Maker(lambda value, trainable: value, _no_modules, np.random.default_rng(0))
        self.structure = Structure(agent, spaces, make)
        self.agent = self.structure.agent
        self._shapes = {name: value.shape for name, value in self.structure.variables.items()}
        self.act = self.agent.act
        self.value = self.agent.value

    def load(self, weights: Weights) -> None:
        """Take over weights by name; raises NetworkError where a name or a shape does not fit."""
        check_weights(weights, self._shapes)
        for part_name, part in self.structure.parts.items():
            for name in part.variables:
                value = weights.get(f"{part_name}.{name}")
                if value is not None:
                    part.variables[name] = value

    def weights(self) -> Weights:
        """The weights by name."""
        parts = self.structure.parts
        return {f"{p}.{v}": value for p, part in parts.items() for v, value in part.variables.items()}


def read_by_acting(agent: Agent, spaces: Spaces, observation: Tree) -> tuple[str, ...]:
    """The names of the weights that `agent.act` reads, found by acting once on observations [1, ...]."""
    engine = NumpyEngine(agent, spaces)
    read: list[str] = []
    for part_name, part in engine.structure.parts.items():
        part.variables = _Recording(part.variables, part_name, read)
    engine.act(observation)
    return tuple(sorted(set(read)))


class _Recording(dict):
    def __init__(self, values: dict, prefix: str, read: list[str]):
        super().__init__(values)
        self._prefix, self._read = prefix, read

    def __getitem__(self, name: str) -> Any:
        self._read.append(f"{self._prefix}.{name}")
        return super().__getitem__(name)
