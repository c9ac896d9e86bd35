"""The engine that only acts: an agent whose networks come from specs, in plain NumPy. Workers, evaluation and serving
use it and import no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Spaces, zeros
from etude.base.trees import Tree
from etude.engines.parameter_layout import LaidOutEngine, ParameterLayout, read_losses
from etude.networks.maker import Maker
from etude.networks.network import Part, parts_of
from etude.ops.blas import one_thread
from etude.protocols import Weights


def _no_modules(*network: Any) -> Part:
    raise NetworkError(
        "NumPy cannot evaluate a torch.nn.Module, a keras.Model or a pretrained model; use the engine that it was "
        "written for."
    )


class NumpyEngine(LaidOutEngine):
    """Evaluates one agent in NumPy. rng: of its first weights."""

    exportable = True

    def __init__(self, agent: Agent, spaces: Spaces, rng: np.random.Generator | None = None):
        self.spaces = spaces
        rng = np.random.default_rng(0) if rng is None else rng
        super().__init__(ParameterLayout(agent, spaces, Maker(rng, _no_modules, _no_modules)))
        self._values: dict[str, np.ndarray] = dict(self.layout.initial)
        self._bound = self.layout.bind(self._values)
        bound = parts_of(self._bound)  # where they hold each weight
        self._places: Any = {f"{p}.{v}": (part.variables, v) for p, part in bound.items() for v in part.variables}
        self.largest: int = max(map(np.size, self._values.values()), default=0)  # how many numbers one weight has
        self._threads = one_thread(self.largest)

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], and states [N, M] if it is recurrent."""
        with self._threads:
            return self._bound.act(observation) if state is None else self._bound.act(observation, state)

    def value(self, observation: Tree, *state: np.ndarray) -> Any:
        """What `agent.value` returns for observations [N, ...], and states [N, M] if it is recurrent."""
        with self._threads:
            return self._bound.value(observation, *state)

    def td_error(self, batch: Batch, hyper: dict[str, float]) -> np.ndarray:
        """The temporal-difference errors [B] that `agent.loss` finds in a batch, without noise: [B]."""
        n, agent = len(batch.weight), self.layout.bind(self._values, hyper)
        noise = {name: np.zeros((n, *shape), np.float32) for name, shape in agent.noise.items()}
        noise |= {name: np.zeros(shape, np.float32) for name, shape in agent.batch_noise.items()}
        with self._threads:
            td_error = read_losses(agent.loss(batch, noise))[2]
        if td_error is None:
            raise ConfigError(
                f"{agent}'s loss reports no td_error, the initial priority that actors compute. Leave "
                "actor_priorities off."
            )
        return td_error

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.layout.check_weights(weights)
        self._values |= weights
        for name, value in weights.items():
            variables, key = self._places[name]
            variables[key] = value

    def weights(self) -> Weights:
        """The weights by name."""
        return dict(self._values)

    def read_by_acting(self) -> tuple[str, ...]:
        """The names of the weights that `act` reads, found by acting once."""
        observation = zeros(self.spaces.observation, 1)
        read: set[str] = set()
        agent = self.layout.bind(self._values)
        for name, part in parts_of(agent).items():
            part.variables = _Recorder(part.variables, name, read)
        if self.state_size:
            agent.act(observation, np.zeros((len(trees.leaves(observation)[0]), self.state_size), np.float32))
        else:
            agent.act(observation)
        return tuple(sorted(read))


class _Recorder(dict[str, Any]):
    """Variables of a part that note which of them are looked up."""

    def __init__(self, variables: Mapping[str, Any], part: str, read: set[str]):
        super().__init__(variables)
        self._part, self._read = part, read

    def __getitem__(self, name: str) -> Any:
        self._read.add(f"{self._part}.{name}")
        return super().__getitem__(name)
