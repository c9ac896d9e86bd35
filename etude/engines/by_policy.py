"""Engines of several policies: one for each name, or copies of one that play against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.engines.numpy import NumpyEngine
from etude.multi_agent.joint import AgentSubset
from etude.protocols import Weights


@dataclass
class _JoinedLayout:
    """The weights of several policies, or of the copies of one, which are not trained, by name. See
    `protocols.Layout`."""

    agent: Any
    initial: Weights
    trainable: tuple[str, ...] = ()
    noisy: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    hyper: tuple[str, ...] = ()
    normaliser: None = None


class PolicyEngines:
    """An engine for each policy, in `of`; a policy without one returns what its agents observe.

    `act` returns a dict of what each policy returns for its agents. subsets: the agents of each policy. spaces: of all.
    """

    state_size = 0

    def __init__(self, engines: Mapping[str, Any], subsets: Mapping[str, AgentSubset], spaces: Spaces):
        self.of: dict[str, Any] = dict(engines)
        self.spaces: Spaces = spaces
        self._subsets = dict(subsets)
        layouts = {policy: engine.layout for policy, engine in self.of.items()}

        def named(field: str) -> tuple[str, ...]:
            return tuple(full_name(policy, name) for policy, own in layouts.items() for name in getattr(own, field))

        self.layout: _JoinedLayout = _JoinedLayout(  # names are `policy.part.variable`
            {policy: own.agent for policy, own in layouts.items()},
            joined_names({policy: own.initial for policy, own in layouts.items()}),
            named("trainable"),
            named("noisy"),
            named("untrained"),
        )
        self.exportable: bool = all(engine.exportable for engine in self.of.values())
        self._owner = {
            full_name(policy, name): (policy, name) for policy in self.of for name in self.of[policy].layout.initial
        }

    @property
    def name(self) -> str:
        """The framework of the policies."""
        return ", ".join(dict.fromkeys(engine.name for engine in self.of.values()))

    @property
    def device(self) -> str:
        """The device of the policies."""
        return ", ".join(dict.fromkeys(engine.device for engine in self.of.values()))

    def act(self, observation: Tree, state: Any = None) -> dict[str, Any]:
        """What each policy returns for the observations [N, ...] of its agents."""
        found = {}
        for policy, subset in self._subsets.items():
            own = subset.observation(observation)
            found[policy] = self.of[policy].act(own) if policy in self.of else own
        return found

    def value(self, observation: Tree, *state: Any) -> dict[str, Any]:
        """The values [N, its agents] of each policy that has a critic of states."""
        return {name: engine.value(self._subsets[name].observation(observation)) for name, engine in self.of.items()}

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them."""
        if names is None:
            return joined_names({policy: engine.weights() for policy, engine in self.of.items()})
        wanted: dict[str, list[str]] = {}
        for name in names:
            policy, own = self._owner[name]
            wanted.setdefault(policy, []).append(own)
        return joined_names({policy: self.of[policy].weights(own) for policy, own in wanted.items()})

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name; raises NetworkError where a name or a shape does not fit."""
        parts: dict[str, Weights] = {}
        for name, value in weights.items():
            if name not in self._owner:
                raise NetworkError(f"There is no weight named {name!r}; there are {', '.join(sorted(self._owner))}.")
            policy, own = self._owner[name]
            parts.setdefault(policy, {})[own] = value
        for policy, part in parts.items():
            self.of[policy].load(part, version)

    def learn(self, *_: Any) -> NoReturn:
        """Raises ConfigError: each policy learns from batches of its own."""
        raise ConfigError("Each policy has an engine of its own, which takes its batches: run.engine.of[policy].")

    gradients = apply = reward = learn


def full_name(policy: str, name: str) -> str:
    """The name of a policy's weight among those of all policies: it begins with the policy's name."""
    return name if name.startswith(f"{policy}.") else f"{policy}.{name}"


def joined_names(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Weights by policy and name, as one dict by full names."""
    return {full_name(policy, name): value for policy, own in weights.items() for name, value in own.items()}


NUMBERS, CHANCES = "numbers", "chances"  # [size]: the number of the copy in each slot, -1 for none; how often it plays


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
        # Names are `slot.part.variable`
        self.layout: _JoinedLayout = _JoinedLayout(self.slots[0].layout.agent, self.weights())

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

    def read_by_acting(self) -> tuple[str, ...]:
        """The names of the weights that `act` reads: all."""
        return tuple(self.layout.initial)

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
