"""What a `Transformer` spec means: whole sequences, and the same steps one by one with the keys and values kept.

Written once over `ops`, as `Architecture`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from etude import ops
from etude.base import trees
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Discrete, Space, describe
from etude.base.trees import Tree
from etude.networks.architecture import ACTIVATION_FUNCTIONS, Architecture
from etude.networks.encoding import leaves
from etude.networks.layers import LayerUnits, Norm, Parameter, Record, flattened, normalised
from etude.networks.specs import Mlp, Transformer

Values = Mapping[str, Any]
LARGEST = 2**28  # numbers in a state
SLOWEST = 10_000.0  # the wavelength of the slowest rotary position, over 2 pi steps


class TransformerArchitecture:
    """A `Transformer` spec on a space: parameter shapes, sequences of steps, and one step. M is the size of a state:
    the number of the next step in its episode, and of each block the keys and values of the last `context` - 1 steps.

    outputs: width of the last layer. gain: factor on its initial weights.
    """

    def __init__(self, spec: Transformer, space: Space, outputs: int, gain: float = 1.0):
        self.spec: Transformer = spec
        self._activation = ACTIVATION_FUNCTIONS[spec.before.activation]
        # Of a token, one weight alone acts on each number of its embedding, as of a position.
        gain_before = (space.n / spec.width) ** 0.5 if isinstance(space, Discrete) else 1.0
        self._before = Architecture(spec.before, space, spec.width, gain=gain_before, prefix="before.")
        self._embedding = list(self._before.layer_units())[-1]
        self._tied = spec.tied and outputs == _tokens(space)
        self._kept = spec.context - 1  # steps
        self.state_size: int = 1 + 2 * spec.layers * self._kept * spec.attention
        if self.state_size > LARGEST:
            raise ConfigError(
                f"Transformer: context = {spec.context:,}, layers = {spec.layers}, width = {spec.width}: the keys and "
                f"values of an environment are {self.state_size:,} numbers; expected at most {LARGEST:,}. Give a "
                "smaller context, also to TokenEnvironment."
            )
        self.parameters: dict[str, Parameter] = dict(self._before.parameters)
        if spec.positions == "learned":
            self.parameters["position"] = Parameter((spec.context, spec.width), "fan_in", spec.width, 1.0)
        # The outputs of layers that are added to the stream are as small as it, whatever the number of blocks.
        small = (2 * spec.layers) ** -0.5
        for block in (f"block{i}." for i in range(spec.layers)):
            self._add_norm(f"{block}attention.input.norm")
            self._add_dense(f"{block}attention.input", spec.width, 3 * spec.attention, 1.0)
            self._add_dense(f"{block}attention.output", spec.attention, spec.width, small)
            self._add_norm(f"{block}feedforward.input.norm")
            self._add_dense(f"{block}feedforward.input", spec.width, spec.feedforward, 1.0)
            self._add_dense(f"{block}feedforward.output", spec.feedforward, spec.width, small)
        self._add_norm("norm")
        self._affine = _affine
        last = Mlp((), spec.before.activation, spec.before.initializer)
        self._after = Architecture(last, gym_spaces.Box(-1, 1, (spec.width,)), outputs, gain=gain, prefix="after.")
        self.parameters |= {} if self._tied else self._after.parameters

    def _add_norm(self, name: str) -> None:
        self.parameters[f"{name}.scale"] = Parameter((self.spec.width,), "ones", 1, 1.0)
        self.parameters[f"{name}.bias"] = Parameter((self.spec.width,), "zeros", 1, 1.0)

    def _add_dense(self, name: str, inputs: int, units: int, gain: float) -> None:
        self.parameters[f"{name}.weight"] = Parameter((inputs, units), self.spec.before.initializer, inputs, gain)
        self.parameters[f"{name}.bias"] = Parameter((units,), "zeros", inputs, 1.0)

    def step(self, values: Values, observation: Tree, state: Any) -> tuple[Any, Any]:
        """(outputs [B, outputs], next state [B, M]) of observations [B, ...] and states [B, M]."""
        if not self.spec.causal:
            raise ConfigError(
                "Transformer: causal = False sees whole sequences, and cannot act step by step. Give causal=True."
            )
        outputs, states = self.unroll(values, trees.map(lambda x: ops.expand_dims(x, 1), observation), state)
        return outputs[:, 0], states[:, 0]

    def unroll(self, values: Values, observation: Tree, state: Any = None, first: Any = None) -> tuple[Any, Any]:
        """(outputs [B, L, outputs], the state after the last step [B, 1, M]) of L consecutive steps.

        observation: [B, L, ...]. state: [B, M] before the first step; None: an episode begins there, and no state is
        returned. first: [B, L], 1 where an episode begins. None: nowhere.
        """
        spec, length = self.spec, trees.leaves(observation)[0].shape[1]
        flat = trees.map(lambda x: ops.reshape(x, (-1, *x.shape[2:])), observation)
        x = self._before(values, flat)
        mask, position = self._visible(ops.reshape(x, (-1, length, spec.width))[..., 0], state, first)
        turned = _rotation(position, spec.attention // spec.heads) if spec.positions == "rotary" else None
        if turned is None:
            numbers = ops.reshape(ops.cast(position, "int32") % spec.context, (-1,))
            x = x + ops.matmul(ops.one_hot(numbers, spec.context), values["position"])
        cache = [None] * spec.layers if state is None else self._cache(state)
        kept = [] if state is None else [position[:, -1:] + 1.0]
        for i, before in enumerate(cache):
            x, new = self._block(values, f"block{i}.", x, before, mask, turned)
            if before is not None:
                n, most = length * spec.attention, self._kept * spec.attention
                for old, now in zip(before, new, strict=True):  # the last `most` numbers of both
                    kept += [old[:, n:], now] if n < most else [now[:, n - most :]]
        x = _normalised(values, "norm", x)
        outputs = self._logits(values, x) if self._tied else self._after(values, x)
        outputs = ops.reshape(outputs, (-1, length, outputs.shape[-1]))
        return outputs, None if state is None else ops.expand_dims(ops.concatenate(kept, -1), 1)

    def _visible(self, like: Any, state: Any, first: Any) -> tuple[Any, Any]:
        """(which step sees which [B, L, S], the number of each step in its episode [B, L]) for steps [B, L]. Those that
        are kept come first, the oldest before the others."""
        context, number = self.spec.context, ops.cumsum(ops.ones_like(like[0]), -1)
        episode = ops.zeros_like(like) if first is None else ops.cumsum(first, -1)
        same = ops.expand_dims(episode, 2) == ops.expand_dims(episode, 1)
        ago = ops.expand_dims(number, 1) - ops.expand_dims(number, 0)
        mask = same & (ago < context) & ((ago >= 0) if self.spec.causal else (ago > -context))
        position = ops.sum(ops.cast(same & (ago >= 0), "float32"), -1) - 1.0
        if state is None:
            return mask, position
        goes_on, steps = episode == 0, state[:, :1]
        slot = ops.cumsum(ops.ones_like(state[0, : self._kept]), -1)
        held = ops.expand_dims(self._kept - slot < steps, 1)
        near = ops.expand_dims(number, 1) <= ops.expand_dims(slot, 0)
        kept = ops.expand_dims(goes_on, 2) & held & near
        return ops.concatenate([kept, mask], -1), position + ops.cast(goes_on, "float32") * steps

    def _cache(self, state: Any) -> list[Sequence[Any]]:
        """Keys and values of each block, [B, kept * attention] each."""
        parts = ops.split_last(state[:, 1:], [self._kept * self.spec.attention] * (2 * self.spec.layers))
        return [parts[i : i + 2] for i in range(0, len(parts), 2)]

    def _block(
        self, values: Values, block: str, x: Any, before: Sequence[Any] | None, mask: Any, turned: Any
    ) -> tuple[Any, Sequence[Any]]:
        """What a block makes of x [B * L, width], and the keys and values of these steps, [B, L * attention] each.
        before: those of the steps that are kept. turned: `_rotation`, or None."""
        spec, length, affine = self.spec, int(mask.shape[1]), self._affine
        heads = (spec.heads, spec.attention // spec.heads)
        projected = affine(values, f"{block}attention.input", _normalised(values, f"{block}attention.input.norm", x))
        pair, value = ops.split_last(projected, (2 * spec.attention, spec.attention))
        pair, value = ops.reshape(pair, (-1, length, 2 * heads[0], heads[1])), ops.reshape(value, (-1, length, *heads))
        if turned is not None:
            pair = _rotated(pair, turned)
        query, key = pair[:, :, : spec.heads], pair[:, :, spec.heads :]
        kept = [] if before is None else [ops.reshape(part, (-1, self._kept, *heads)) for part in before]
        attended = ops.attention(query, [*kept[:1], key], [*kept[1:], value], mask)
        x = x + affine(values, f"{block}attention.output", ops.reshape(attended, (-1, spec.attention)))
        hidden = affine(values, f"{block}feedforward.input", _normalised(values, f"{block}feedforward.input.norm", x))
        x = x + affine(values, f"{block}feedforward.output", self._activation(hidden))
        return x, [ops.reshape(part, (-1, length * spec.attention)) for part in (key, value)]

    def _logits(self, values: Values, x: Any) -> Any:
        embeddings = ops.swapaxes(values["before.dense0.weight"], 0, 1)
        return ops.matmul(x, embeddings) * self.spec.width**-0.5

    def recording(self, record: Record) -> TransformerArchitecture:
        """See `Architecture.recording`."""
        recording = copy.copy(self)
        recording._before, recording._after = self._before.recording(record), self._after.recording(record)

        def recorded(values: Values, name: str, x: Any) -> Any:
            record(name, x)
            return _affine(values, name, x)

        recording._affine = recorded
        return recording

    def layer_units(self) -> dict[str, LayerUnits]:
        """See `Architecture.layer_units`. Heads are the units of the layer that computes queries, keys and values."""
        found = self._before.layer_units()
        found |= {self._embedding: found[self._embedding]._replace(residual=True)}
        for i in range(self.spec.layers):
            for name, stream, units, columns in (
                ("attention.input", "heads", self.spec.heads, "heads"),
                ("attention.output", "attention", self.spec.width, "units"),
                ("feedforward.input", "feedforward", self.spec.feedforward, "units"),
                ("feedforward.output", "output", self.spec.width, "units"),
            ):
                full, residual = f"block{i}.{name}", name.endswith("output")
                axes = {f"{full}.weight": ("inputs", columns), f"{full}.bias": (columns,)}
                axes |= {} if residual else {f"{full}.norm.{part}": ("inputs",) for part in ("scale", "bias")}
                found[full] = LayerUnits("block", stream, i, units, axes, residual=residual)
        return found if self._tied else {**found, **self._after.layer_units()}

    def input_labels(self, labels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Architecture.input_labels`. What blocks add to the stream of the embeddings keeps their labels."""
        found, stream = self._before.input_labels(labels), labels[self._embedding]
        for block in (f"block{i}." for i in range(self.spec.layers)):
            found |= {f"{block}{name}": stream for name in ("attention.input", "feedforward.input")}
            heads = flattened(labels[f"{block}attention.input"], self.spec.attention // self.spec.heads)
            found[f"{block}attention.output"] = heads.reshape(-1, self.spec.heads).T.reshape(-1)
            found[f"{block}feedforward.output"] = labels[f"{block}feedforward.input"]
        return found if self._tied else {**found, **self._after.input_labels(labels, stream)}


def _rotation(position: Any, size: int) -> tuple[Any, Any]:
    """The (cosine, sine) by which rotary positions [B, L] turn the pairs of numbers of heads of this size, [B, L, 1,
    pairs] each."""
    pairs = size // 2
    speed = ops.exp(ops.linspace(0.0, -math.log(SLOWEST) * (pairs - 1) / pairs, pairs, position))
    angle = ops.expand_dims(ops.expand_dims(position, -1) * speed, 2)
    return ops.cos(angle), ops.sin(angle)


def _rotated(x: Any, turned: tuple[Any, Any]) -> Any:
    """Queries or keys [B, L, heads, size], the first half of whose numbers is paired with the second."""
    (cos, sin), pairs = turned, x.shape[-1] // 2
    one, other = ops.split_last(x, (pairs, pairs))
    return ops.concatenate([one * cos - other * sin, one * sin + other * cos], -1)


def _affine(values: Values, name: str, x: Any) -> Any:
    return ops.affine(x, values[f"{name}.weight"], values[f"{name}.bias"])


def _normalised(values: Values, name: str, x: Any) -> Any:
    return normalised(values, Norm(f"{name}.scale", f"{name}.bias"), x)


def _tokens(space: Space) -> int:
    """How many tokens there are; NetworkError for observations that are none."""
    found = leaves(space)
    if len(found) == 1 and isinstance(found[0][1], Discrete):
        return int(found[0][1].n)
    raise NetworkError(
        f"Transformer: tied = True over {describe(space)}; expected Discrete observations, whose embeddings are the "
        "weights of the outputs. Leave tied off."
    )
