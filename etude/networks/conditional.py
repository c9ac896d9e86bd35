"""The head of an autoregressive policy: logits of each choice, given those before it; and what a `ByEmbedding` spec
means: values of actions that the observation describes.

Written once over `ops`, as `Architecture`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import NetworkError
from etude.base.spaces import ACTION_MASK, Box, Dict, Space, describe
from etude.base.trees import Tree
from etude.networks.architecture import ACTIVATION_FUNCTIONS, Architecture
from etude.networks.layers import LayerUnits, Parameter, Record
from etude.networks.specs import ByEmbedding, Conv, Mlp


class ConditionalArchitecture:
    """For each part of an action a small network over what the policy's network computes for it and the one-hot choices
    of the parts before it; see `losses.distributions.Conditional`. All combinations of these are evaluated.

    sizes: how many choices each part has. spec: its hidden layers; the first one is `inputs // len(sizes)` wide and
    adds an embedding of each earlier choice to what the policy's network computes for the part.
    """

    portable = True

    def __init__(self, sizes: Sequence[int], spec: Mlp):
        self.sizes: tuple[int, ...] = tuple(sizes)
        self.width: int = spec.widths[0]
        self.spec: Mlp = spec
        self.inputs: int = len(self.sizes) * self.width
        self.noise: dict[str, tuple[int, ...]] = {}
        self._activation = ACTIVATION_FUNCTIONS[spec.activation]
        after, hidden = Mlp(spec.widths[1:], spec.activation, spec.initializer), Box(-1, 1, (self.width,), np.float32)
        self._after = [Architecture(after, hidden, n, gain=0.01, prefix=f"part{i}.") for i, n in enumerate(self.sizes)]
        self.parameters: dict[str, Parameter] = {}
        for i, architecture in enumerate(self._after):
            for j, n in enumerate(self.sizes[:i]):  # i one-hot vectors: i inputs that are 1
                self.parameters[f"part{i}.choice{j}"] = Parameter((n, self.width), "fan_in", i, 1.0)
            self.parameters |= architecture.parameters

    def __call__(self, values: Mapping[str, Any], x: Any) -> tuple[Any, ...]:
        """Logits of part i for every combination of the choices before it, [*batch, P_i, n_i], of [*batch, inputs]."""
        batch = (-1, *tuple(x.shape)[1:-1])
        return tuple(self._part(values, i, ops.reshape(x, (-1, self.inputs)), batch) for i in range(len(self.sizes)))

    def _part(self, values: Mapping[str, Any], i: int, x: Any, batch: tuple[int, ...]) -> Any:
        hidden = ops.expand_dims(x[:, i * self.width : (i + 1) * self.width], 1)
        combinations = None
        for j in range(i):
            choice = values[f"part{i}.choice{j}"]
            if combinations is not None:
                choice = ops.reshape(ops.expand_dims(combinations, 1) + ops.expand_dims(choice, 0), (-1, self.width))
            combinations = choice
        hidden = self._activation(hidden if combinations is None else hidden + combinations)
        logits = self._after[i](values, ops.reshape(hidden, (-1, self.width)))
        return ops.reshape(logits, (*batch, int(hidden.shape[1]), self.sizes[i]))

    def recording(self, record: Record) -> ConditionalArchitecture:
        """The same: no layer of it is mutated."""
        return self

    def layer_units(self) -> dict[str, LayerUnits]:
        """None: no layer of it is mutated."""
        return {}


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
