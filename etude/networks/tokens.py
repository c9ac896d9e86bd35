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

    Where `spec.causal` is False, there is one more token, `mask`, and the outputs are those in the place of each token:
    that of token i at i + 1. It acts by what it puts in the place of a mask that follows the tokens so far.

    space: observations, with one part of `base.spaces.Tokens`.
    """

    def __init__(self, spec: Transformer, space: Space, outputs: int, rng: np.random.Generator, gain: float = 1.0):
        self.path: Path
        self.space: Any  # of `Tokens`
        self.path, self.space = tokens_of(space)
        self.mask: int = len(self.space.vocabulary)
        vocabulary = Discrete(self.mask + (not spec.causal))
        super().__init__(TransformerArchitecture(spec, vocabulary, outputs, gain), rng)
        self.state_size: int = self.state_size if spec.causal else 1

    def whole(self, tokens: Any, end: Any = None) -> Any:
        """[B, L + 1, outputs] after 0, 1, ... and all of the tokens [B, L] of sequences. A model of tokens has, after i
        tokens, the logits of token i. end: [B] how many tokens there are, for networks that would else see what comes
        after them."""
        begun = ops.concatenate([ops.zeros_like(tokens[:, :1]), tokens], 1)
        first = None if end is None else ops.one_hot(end + 1, int(begun.shape[1]))
        return self.architecture.unroll(self.variables, begun, None, first)[0]

    def __call__(self, observation: Tree = None, state: Any = None) -> tuple[Any, Any]:
        """(outputs [N, outputs] after the last token of each window, next state) of observations [N, ...] and states
        [N, M].

        In NumPy only the tokens that are new since the last step are computed. Frameworks, whose programs have fixed
        shapes, compute whole windows, and leave the state as it is.
        """
        window = at(observation, self.path)
        causal, context = self.architecture.spec.causal, self.space.context
        if isinstance(state, np.ndarray) and causal:
            return self._continued(window, state)
        tokens, count = ops.cast(window[:, :-1], "int32"), ops.cast(window[:, -1], "int32")
        if causal:
            outputs, last = self.whole(tokens), ops.one_hot(count, context + 1)
        else:
            tokens = self.masked(tokens, ops.one_hot(count, context))
            outputs, last = self.whole(tokens, count + 1), ops.one_hot(count + 1, context + 1)
        return ops.sum(ops.expand_dims(last, -1) * outputs, 1), state

    def masked(self, tokens: Any, hidden: Any) -> Any:
        """The tokens [B, L] with masks where `hidden` is 1."""
        return tokens + ops.cast(hidden, "int32") * (self.mask - tokens)

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
            before = state if len(rows) == len(state) else state[rows]
            before = np.where(anew[rows, None], np.float32(0.0), before) if anew[rows].any() else before
            found, after = self.architecture.unroll(self.variables, tokens, before)
            if len(rows) == len(state):
                return found[:, -1], after[:, -1]
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
