"""Finding the network that an agent of one's own acts with, if it is plain dense layers: workers then act alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.spaces import Space, storage_dtype, zeros
from etude.base.trees import Tree
from etude.networks.dense import DenseActor, Layer
from etude.protocols import Weights

_OBSERVATIONS = 64


class ExportableEngine(Protocol):
    """What is compared."""

    def act(self, observation: Tree) -> Any: ...
    def weights(self) -> Weights: ...
    def load(self, weights: Weights) -> None: ...


def exported(
    engine: ExportableEngine, chains: list[tuple[Layer, ...]], convert: Callable[[Tree], Any], space: Space
) -> Any:
    """The first of the chains of layers that computes what the engine's `act` does, as a `DenseActor`, or None.

    They are compared on random observations, also after the weights of the chain have been changed: another network
    with the same values (a target network) does not change with them. All weights are put back.
    """
    observation = random_observations(space, np.random.default_rng(0), _OBSERVATIONS)
    inputs = convert(observation)
    if not chains or not isinstance(inputs, np.ndarray) or inputs.ndim < 2:
        return None
    before = engine.weights()
    rng = np.random.default_rng(1)
    try:
        for layers in chains:
            actor = DenseActor(layers, before, convert)
            engine.load(before)
            if actor.names and _agree(engine, actor, observation) and _follows(engine, actor, observation, rng):
                return DenseActor(layers, before, convert)
    finally:
        engine.load(before)
    return None


def _follows(engine: ExportableEngine, actor: DenseActor, observation: Tree, rng: np.random.Generator) -> bool:
    changed = {
        name: (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, value in actor.weights().items()
    }
    engine.load(changed)
    actor.load(changed)
    return _agree(engine, actor, observation)


def _agree(engine: ExportableEngine, actor: DenseActor, observation: Tree) -> bool:
    try:
        ours = actor.act(observation)
    except ValueError:  # a network of other inputs
        return False
    theirs = engine.act(observation)
    if not isinstance(theirs, np.ndarray) or theirs.shape != ours.shape or not np.issubdtype(theirs.dtype, np.floating):
        return False
    return bool(np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))))


def random_observations(space: Space, rng: np.random.Generator, n: int) -> Tree:
    """n members of a space, as a tree of arrays [n, ...]; the space's own generator is left alone."""
    space = copy.deepcopy(space)
    space.seed(int(rng.integers(2**31)))
    return trees.stack([_as_tree(space.sample(), zeros(space), space) for _ in range(n)])


def _as_tree(value: Any, like: Tree, space: Space) -> Tree:
    if isinstance(like, np.ndarray):
        return np.asarray(value, like.dtype if like.shape else storage_dtype(space))
    return trees.map(lambda leaf, x: np.asarray(x, leaf.dtype), like, value)
