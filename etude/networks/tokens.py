"""Transformers over texts in tokens: whole sequences, which losses read, and the next token of an agent that acts."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import NetworkError
from etude.base.spaces import Discrete, Space, Tokens, describe
from etude.base.trees import Tree
from etude.networks.encoding import Path, at, leaves
from etude.networks.network import RecurrentNetwork
from etude.networks.specs import Transformer
from etude.networks.transformer import TransformerArchitecture


class TokenNetwork(RecurrentNetwork):
    """Outputs after each token of a text. Every text begins with one token 0, so that there are outputs before the
    first one, too.

    `network.whole(tokens)`: of whole sequences, for losses.
    `network(observation, state)`: after the last token of each window, for `Agent.act`. The state, of `state_size`
        numbers, is the key-value cache: zeros at the first step of an episode, and not recorded
        (`Agent.state_recorded`).

    space: observations, with one part of `base.spaces.Tokens`.
    """

    def __init__(self, spec: Transformer, space: Space, outputs: int, rng: np.random.Generator, gain: float = 1.0):
        self.path, self.space = tokens_of(space)
        vocabulary = Discrete(len(self.space.vocabulary))
        super().__init__(TransformerArchitecture(spec, vocabulary, outputs, gain), rng)

    def whole(self, tokens: Any) -> Any:
        """[B, L + 1, outputs] after 0, 1, ... and all of the tokens [B, L] of sequences. A model of tokens has, after i
        tokens, the logits of token i."""
        begun = ops.concatenate([ops.zeros_like(tokens[:, :1]), tokens], 1)
        return self.architecture.unroll(self.variables, begun)[0]

    def __call__(self, observation: Tree = None, state: Any = None) -> tuple[Any, Any]:
        """(outputs [N, outputs] after the last token of each window, next state) of observations [N, ...] and states
        [N, M].

        In NumPy only the tokens that are new since the last step are computed. Frameworks, whose programs have fixed
        shapes, compute whole windows, and leave the state as it is.
        """
        window = at(observation, self.path)
        if isinstance(state, np.ndarray):
            return self._continued(window, state)
        outputs = self.whole(ops.cast(window[:, :-1], "int32"))
        last = ops.one_hot(ops.cast(window[:, -1], "int32"), self.space.context + 1)
        return ops.sum(ops.expand_dims(last, -1) * outputs, 1), state

    def _continued(self, window: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows with as many new tokens are computed together."""
        begun = np.pad(window[:, :-1].astype(np.int32), ((0, 0), (1, 0)))
        count, known = window[:, -1].astype(np.int64) + 1, state[:, 0].astype(np.int64)
        # A full window may have lost its first tokens, and the cache counts from the first one.
        anew = (known < 1) | (known >= count) | (count > self.space.context)
        new = np.where(anew, count, count - known)
        outputs: Any = None
        following = np.empty_like(state)
        for n in np.unique(new).tolist():
            rows = np.flatnonzero(new == n)
            tokens = np.take_along_axis(begun[rows], count[rows, None] + np.arange(-n, 0), 1)
            before = np.where(anew[rows, None], np.float32(0.0), state[rows]) if anew[rows].any() else state[rows]
            found, after = self.architecture.unroll(self.variables, tokens, before)
            outputs = np.empty((len(state), found.shape[-1]), found.dtype) if outputs is None else outputs
            outputs[rows], following[rows] = found[:, -1], after[:, -1]
        return outputs, following


def tokens_of(space: Space) -> tuple[Path, Tokens]:
    """The part of observations that holds tokens, and where it is; NetworkError where there is none, or more."""
    found = [(path, leaf) for path, leaf in leaves(space) if isinstance(leaf, Tokens)]
    if len(leaves(space)) != 1 or not found:
        raise NetworkError(
            f"network is a Transformer, which reads the tokens of a text here; the observations are {describe(space)}. "
            "Give an environment of texts (`language.TokenEnvironment`), or another network, such as Mlp()."
        )
    return found[0]
