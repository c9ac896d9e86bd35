"""Acting in NumPy with several sets of weights at once: agents of one architecture; or one agent with weights
that are perturbed.

Those have noise in the layers; or weights of its own for each environment, drawn around those that are learned, from
whose returns a gradient is estimated. Environments 2i and 2i + 1 are then pair i: they act with `weights + sigma *
noise` and `weights - sigma * noise`. The noise comes from (run seed, generation, pair) on either side: no vector of it
is ever sent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.errors import ConfigError, NetworkError
from etude.base.seeding import generator
from etude.base.spaces import ACTION_MASK, Spaces, zeros
from etude.base.trees import Tree
from etude.engines.numpy import NumpyEngine
from etude.networks.architecture import Architecture
from etude.networks.network import FreeParameters, Network, NetworkForEach, Normaliser, Part, parts_of, put_part
from etude.ops.blas import one_thread
from etude.protocols import Engine, Layout, Weights


class StackedActor:
    """Acts for `members` agents in equally many environments each, which follow those of the member before. What it
    returns for an environment has the bits that the NumPy engine of its member alone returns.

    Raises ConfigError for an agent that cannot act like this, such as one with convolutions or a recurrent state.
    """

    state_size = 0
    acted: Any = None
    rewarded: Any = None

    def __init__(self, agent: Agent, spaces: Spaces, members: int):
        self._engine = NumpyEngine(agent, spaces)
        self._name = str(agent)
        if self._engine.state_size:
            raise ConfigError(f"{self._name} has a recurrent state, and acts for one run at a time.")
        self._read = self._engine.read_by_acting()
        others = [name for name, part in self._parts.items() if not _stackable(part)]
        if others:
            raise ConfigError(
                f"{self._name} acts with {', '.join(others)}, of a kind that acts for one run at a time; expected "
                "networks from Mlp, without noise in their layers."
            )
        initial = self._engine.weights()
        self._weights = [{name: initial[name] for name in self._read} for _ in range(members)]
        self._bound: Agent | None = None
        self._acting = 0  # environments of each member, for which it is bound
        # Some agents treat a batch as a whole, or rely on the shapes of weights: tried with two sets of weights
        rng, rows = np.random.default_rng(0), 2
        sets = [
            {name: rng.standard_normal(value.shape).astype(value.dtype) for name, value in self._weights[0].items()}
            for _ in range(2)
        ]

        def draw(leaf: np.ndarray) -> np.ndarray:
            return rng.standard_normal(leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf

        # Random observations; of those with masks, all actions allowed
        observation = trees.map(draw, zeros(self._engine.spaces.observation, 2 * rows))
        if self._engine.spaces.masked:
            observation = {**observation, ACTION_MASK: np.ones_like(observation[ACTION_MASK])}
        try:
            together = self._stacked(sets, rows).act(observation)
        except Exception as error:  # whatever an agent of a user's own raises
            raise ConfigError(
                f"{self._name}'s act takes no stacked weights ({error}); one run acts at a time."
            ) from error
        for i, own in enumerate(sets):
            part = slice(i * rows, (i + 1) * rows)
            agent = self._engine.layout.bind({**self._engine.weights(), **own})
            alone = trees.leaves(agent.act(trees.rows(observation, part)))
            found = [leaf[part] for leaf in trees.leaves(together)]
            if not all(np.array_equal(one, other, equal_nan=True) for one, other in zip(alone, found, strict=True)):
                raise ConfigError(f"{self._name}'s act treats a batch as a whole, and acts for one run at a time.")

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What each member's `agent.act` returns for its part of observations [members * n, ...]."""
        n = len(trees.leaves(observation)[0]) // len(self._weights)
        if self._bound is None or n != self._acting:
            self._bound, self._acting = self._stacked(self._weights, n), n
        with one_thread(self._engine.largest):
            return self._bound.act(observation)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act for all members with these weights; see `load_member`."""
        for member in range(len(self._weights)):
            self.load_member(member, weights)

    def load_member(self, member: int, weights: Weights) -> None:
        """Act for this member with these weights; raises NetworkError where a name or a shape does not fit."""
        self._engine.layout.check_weights(weights)
        self._weights[member] |= {name: weights[name] for name in self._read if name in weights}
        self._bound = None

    def _stacked(self, weights: list[Weights], environments: int) -> Agent:
        """The agent as a function of all members' variables."""
        stacked = {name: np.stack([own[name] for own in weights]) for name in self._read}
        agent = self._engine.layout.bind({**self._engine.weights(), **stacked})
        for name, part in parts_of(agent).items():
            if name not in self._parts:
                continue
            if isinstance(part, Network):
                put_part(agent, name, NetworkForEach(part))
            else:  # a row of numbers for each environment
                rows = {own: np.repeat(value, environments, 0) for own, value in part.variables.items()}
                put_part(agent, name, part.bound(rows))
        return agent

    @property
    def _parts(self) -> dict[str, Part]:
        """Those that acting reads."""
        parts = self._engine.layout.parts
        return {name: part for name, part in parts.items() if any(own.startswith(f"{name}.") for own in self._read)}


def _stackable(part: Part) -> bool:
    if isinstance(part, Network):
        return type(part.architecture) is Architecture and part.portable and not part.noise
    return isinstance(part, FreeParameters | Normaliser)


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
    acted: Any = None
    rewarded: Any = None

    def __init__(self, agent: Agent, spaces: Spaces, run_seed: int):
        self._engine, self._run_seed = NumpyEngine(agent, spaces), run_seed
        layout = self._engine.layout
        networks = {name: part for name, part in layout.parts.items() if isinstance(part, Network)}
        own = {f"{name}.{variable}" for name, part in networks.items() for variable in part.variables}
        if others := [name for name in layout.trainable if name not in own]:
            raise NetworkError(
                f"{agent} is to act with weights of its own in each environment, and trains "
                f"{', '.join(others)}; expected networks made from specs alone."
            )
        if still := [f"{name}.{variable}" for name, part in networks.items() for variable in part.frozen]:
            raise NetworkError(
                f"{agent} moves trained weights alone, and {', '.join(sorted(still))} follow gradient "
                "steps of losses, of which it takes none. Leave batch_renorm and spectral_norm of the network off."
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

    def __call__(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
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
