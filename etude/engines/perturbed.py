"""Acting with perturbed weights: noise in the layers; or weights of its own for each environment, drawn around those
that are learned, from whose returns a gradient is estimated.

In the second, environments 2i and 2i + 1 are pair i: they act with `weights + sigma * noise` and `weights - sigma *
noise`. The noise comes from (run seed, generation, pair) on either side: no vector of it is ever sent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.errors import ConfigError, NetworkError
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.engines.numpy import NumpyEngine
from etude.networks.network import Network, NetworkForEach, parts_of, put_part
from etude.ops.blas import one_thread
from etude.protocols import Engine, Layout, Weights


class Perturbed:
    """Acts with an engine and the noise that was loaded last."""

    state_size = 0  # recurrent networks have no noise

    def __init__(self, engine: Engine):
        self._engine = engine
        self._still: Weights = {name: np.zeros_like(engine.layout.initial[name]) for name in engine.layout.noisy}
        self._noise = self._still

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], explored with noise."""
        self._engine.load(self._noise)
        try:
            return self._engine.act(observation)
        finally:
            self._engine.load(self._still)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with this noise from now on; other weights are the engine's."""
        self._noise = {name: weights.get(name, noise) for name, noise in self._noise.items()}
        self._engine.load({name: value for name, value in weights.items() if name not in self._noise})


def noise_of(layout: Layout, run_seed: int, generation: int, pair: int) -> np.ndarray:
    """Standard normal numbers for all trained weights [P], float32."""
    size = sum(layout.initial[name].size for name in layout.trainable)
    return generator(run_seed, "evolution", generation, pair).standard_normal(size, np.float32)


class PerturbedActor:
    """The NumPy engine with weights of its own for each environment."""

    state_size = 0  # agents are not recurrent

    def __init__(self, agent: Agent, spaces: Spaces, run_seed: int):
        self._engine, self._run_seed = NumpyEngine(agent, spaces), run_seed
        layout = self._engine.layout
        networks = {name: part for name, part in layout.parts.items() if isinstance(part, Network)}
        own = {f"{name}.{variable}" for name, part in networks.items() for variable in part.variables}
        if others := [name for name in layout.trainable if name not in own]:
            raise NetworkError(
                f"{type(agent).__name__} is to act with weights of its own in each environment, and trains "
                f"{', '.join(others)}; expected networks made from specs alone."
            )
        self._generation = 0  # gradient steps that led to the weights
        self._vectors: dict[int, np.ndarray] = {}  # the weights [P] of each environment, of this generation
        self._bound: dict[tuple[int, ...], Agent] = {}

    def act(self, observation: Tree) -> Any:
        """A function of the environments' numbers, a tuple: what `agent.act` returns for observations [N, ...], each
        with the weights of its environment. See `explore.ByEnvironment`."""
        return functools.partial(self._act, observation)

    def _act(self, observation: Tree, columns: tuple[int, ...]) -> Any:
        if columns not in self._bound:
            layout, values = self._engine.layout, self._engine.weights()
            own = layout.from_vector(np.stack([self._vector(column) for column in columns]))
            agent = layout.bind({**values, **own})
            for name, part in parts_of(agent).items():
                if isinstance(part, Network):
                    put_part(agent, name, NetworkForEach(part))
            self._bound[columns] = agent
        with one_thread(self._engine.largest):
            return self._bound[columns].act(observation)

    def _vector(self, column: int) -> np.ndarray:
        if column not in self._vectors:
            layout = self._engine.layout
            noise = noise_of(layout, self._run_seed, self._generation, column // 2)
            sign = np.float32((1 if column % 2 == 0 else -1) * layout.agent.config.sigma)
            self._vectors[column] = layout.as_vector(self._engine.weights()) + sign * noise
        return self._vectors[column]

    def read_by_acting(self) -> tuple[str, ...]:
        """The names of the weights that `act` reads."""
        return self._engine.read_by_acting()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights and their generation; raises NetworkError where a name or a shape does not fit."""
        self._engine.load(weights)
        self._generation = version.gradient_steps
        self._vectors, self._bound = {}, {}

    def weights(self) -> Weights:
        """The weights by name."""
        return self._engine.weights()


class FromReturns:
    """Gradient steps with what an agent estimates from returns of perturbed weights. A `updates.GradientSource`."""

    def __init__(self, engine: Engine, run_seed: int, environments: int):
        if environments % 2:
            raise ConfigError(
                f"environments = {environments}; weights are perturbed in pairs, both ways: expected an even number."
            )
        self._engine, self._run_seed, self._pairs = engine, run_seed, environments // 2

    def learn(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step by the returns [1, N] in `reward`."""
        layout, returns = self._engine.layout, batches.reward[0]
        noise = np.stack([noise_of(layout, self._run_seed, gradient_steps, pair) for pair in range(self._pairs)])
        weights = layout.as_vector(self._engine.weights(layout.trainable))
        with one_thread(noise.size):
            gradient = layout.agent.estimate(weights, returns.reshape(-1, 2).T, noise)
            norms = np.linalg.norm(gradient), np.linalg.norm(weights)
        update = self._engine.apply(layout.from_vector(gradient), hyper)
        metrics = {"return_mean": returns.mean(), "return_deviation": returns.std(), "return_best": returns.max()}
        metrics["gradient_norm"], metrics["weight_norm"] = norms
        return Update({}, {**update.metrics, **{name: float(value) for name, value in metrics.items()}}, None, 1)
