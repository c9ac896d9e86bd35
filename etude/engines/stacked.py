"""Acting in NumPy with several agents of one architecture at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Spaces, zeros
from etude.base.trees import Tree
from etude.engines.numpy import NumpyEngine
from etude.networks.architecture import Architecture
from etude.networks.network import FreeParameters, Network, NetworkForEach, Normaliser, Part, parts_of, put_part
from etude.ops.blas import one_thread
from etude.protocols import Weights


class StackedActor:
    """Acts for `members` agents in equally many environments each, which follow those of the member before. What it
    returns for an environment has the bits that the NumPy engine of its member alone returns.

    Raises ConfigError for an agent that cannot act like this, such as one with convolutions or a recurrent state.
    """

    state_size = 0

    def __init__(self, agent: Agent, spaces: Spaces, members: int):
        self._engine = NumpyEngine(agent, spaces)
        self._name = type(agent).__name__
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
