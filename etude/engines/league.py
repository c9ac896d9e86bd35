"""Acting with copies of one policy: each environment plays whole episodes against one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.engines.numpy import NumpyEngine
from etude.protocols import Weights

NUMBERS, CHANCES = "numbers", "chances"  # [size]: the number of the copy in each slot, -1 for none; how often it plays


class LeagueLayout:
    """The weights of all copies by name: `slot.part.variable`; nothing is trained. See `protocols.Layout`."""

    trainable: tuple[str, ...] = ()
    noisy: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()

    def __init__(self, agent: Agent, initial: Weights):
        self.agent: Agent = agent
        self.initial: Weights = initial


class LeagueOutput:
    """What `LeagueEngine.act` returns: the copies, and what they are to act on.

    numbers: [size] float32, the number of the copy in each slot. chances: [size] how often each is to be an opponent.
    """

    def __init__(self, engine: LeagueEngine, observation: Tree):
        self._engine, self._observation = engine, observation
        self.numbers: np.ndarray = engine.numbers
        self.chances: np.ndarray = engine.chances

    def act(self, slot: int, rows: np.ndarray) -> Any:
        """What the copy in this slot returns for some of the observations."""
        return self._engine.slots[slot].act(trees.rows(self._observation, rows))


class LeagueEngine:
    """Acts in NumPy with copies of an agent, one in each of `size` slots. name, device: of the agent's own engine."""

    state_size = 0
    exportable = True

    def __init__(self, agent: Agent, spaces: Spaces, size: int, name: str = "", device: str = ""):
        self.name: str = name
        self.device: str = device
        self.spaces: Spaces = spaces
        self.slots: list[NumpyEngine] = [NumpyEngine(agent, spaces) for _ in range(size)]
        self.acting: tuple[str, ...] = self.slots[0].read_by_acting()  # the weights of one copy
        self.numbers: np.ndarray = np.full(size, -1.0, np.float32)
        self.chances: np.ndarray = np.zeros(size, np.float32)
        self.numbers[0], self.chances[0] = 0.0, 1.0
        self.layout: LeagueLayout = LeagueLayout(self.slots[0].layout.agent, self.weights())

    def act(self, observation: Tree, state: Any = None) -> LeagueOutput:
        """What the explorer asks the copies with that each environment plays against."""
        return LeagueOutput(self, observation)

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them."""
        found = {NUMBERS: self.numbers, CHANCES: self.chances}
        for slot, engine in enumerate(self.slots):
            own = engine.weights()
            found |= {f"{slot}.{name}": own[name] for name in self.acting}
        return found if names is None else {name: found[name] for name in names}

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name; raises NetworkError where a name or a shape does not fit."""
        self.numbers = np.array(weights.get(NUMBERS, self.numbers))
        self.chances = np.array(weights.get(CHANCES, self.chances))
        parts: dict[int, Weights] = {}
        for name, value in weights.items():
            if name not in (NUMBERS, CHANCES):
                slot, _, own = name.partition(".")
                parts.setdefault(int(slot), {})[own] = value
        for number, part in parts.items():
            self.slots[number].load(part)
