"""What a `ByEmbedding` spec means: values of actions that the observation describes.

Written once over `ops`, as `Architecture`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import NetworkError
from etude.base.spaces import ACTION_MASK, Box, Dict, Space, describe
from etude.base.trees import Tree
from etude.networks.architecture import Architecture
from etude.networks.layers import Parameter
from etude.networks.specs import ByEmbedding, Conv, Mlp
from etude.networks.units import LayerUnits, Record


def by_embedding(
    spec: ByEmbedding, space: Space, shape: tuple[int, ...], gain: float = 1.0
) -> Architecture | EmbeddingArchitecture:
    """Outputs of this shape for the actions, or one output that does not depend on embeddings: a critic of states."""
    if shape == (1,):
        return Architecture(spec.network, _without(space, spec.key), 1, gain=gain)
    return EmbeddingArchitecture(spec, space, shape, gain)


def _without(space: Space, key: str) -> Dict:
    if not isinstance(space, Dict) or len(space.spaces.keys() - {key, ACTION_MASK}) == 0 or key not in space.spaces:
        raise NetworkError(
            f"ByEmbedding(key={key!r}) reads the embeddings of actions there and the state from the other keys; the "
            f"observations are {describe(space)}. Give a Dict with {key!r}: Box(actions, numbers) and a state, or "
            "name another key."
        )
    return Dict({name: part for name, part in space.spaces.items() if name != key})


class EmbeddingArchitecture:
    """A `ByEmbedding` spec on a space: inner products of a state embedding, which a network computes from the rest of
    the observation, with the embedding of each action, which the observation brings.

    shape: of the outputs, (actions,), or (actions, numbers) with a state embedding for each number.
    gain: factor on the initial weights of the state embedding.
    """

    def __init__(self, spec: ByEmbedding, space: Space, shape: tuple[int, ...], gain: float = 1.0):
        rest, self._key = _without(space, spec.key), spec.key
        embeddings = space.spaces[spec.key]  # type: ignore[attr-defined]
        if not isinstance(embeddings, Box) or len(embeddings.shape) != 2 or embeddings.shape[0] != shape[0]:
            raise NetworkError(
                f"ByEmbedding(key={spec.key!r}): the observations' {spec.key!r} is {describe(embeddings)}; expected "
                f"Box({shape[0]}, numbers), an embedding of each of the {shape[0]} actions."
            )
        self.shape: tuple[int, ...] = shape
        self.size: int = int(embeddings.shape[1])
        self.spec: Mlp | Conv = spec.network
        self._state = Architecture(spec.network, rest, int(np.prod(shape[1:], dtype=int)) * self.size, gain=gain)
        self.parameters: dict[str, Parameter] = self._state.parameters
        self.noise: dict[str, tuple[int, ...]] = self._state.noise
        self.portable: bool = self._state.portable

    def __call__(self, values: Mapping[str, Any], observation: Tree) -> Any:
        """[B, *shape] for a batch of observations [B, ...] and parameters by name."""
        state, embeddings = self._state(values, observation), ops.cast(observation[self._key], "float32")
        if len(self.shape) == 1:
            return ops.sum(ops.expand_dims(state, 1) * embeddings, -1)
        state = ops.reshape(state, (-1, 1, *self.shape[1:], self.size))
        return ops.sum(state * ops.expand_dims(embeddings, 2), -1)

    def recording(self, record: Record) -> EmbeddingArchitecture:
        """See `Architecture.recording`."""
        recording = copy.copy(self)
        recording._state = self._state.recording(record)
        return recording

    def layer_units(self) -> dict[str, LayerUnits]:
        """See `Architecture.layer_units`."""
        return self._state.layer_units()

    def input_labels(self, labels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Architecture.input_labels`."""
        return self._state.input_labels(labels)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values by name, float32."""
        return self._state.initial(rng)
