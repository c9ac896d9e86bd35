"""Transformers on every engine: steps with keys and values kept are what whole sequences are, and torch's attention."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS

from etude import ops
from etude.base.spaces import Box, Discrete
from etude.networks import Transformer
from etude.networks.layers import draw_all
from etude.networks.transformer import TransformerArchitecture

B, L = 4, 13
VECTORS, TOKENS = Box(-1.0, 1.0, (3,), np.float32), Discrete(7)
SPEC = Transformer(layers=2, width=16, heads=4, feedforward=24, context=5)
CASES = {
    "rotary": (SPEC, VECTORS),
    "learned, tied": (Transformer(1, 8, 2, 12, 5, positions="learned", tied=True), TOKENS),
}


@pytest.fixture(scope="module")
def framework(engine_name):
    return FRAMEWORKS[engine_name]()


@pytest.fixture(params=CASES)
def case(request):
    """(architecture, values, observation [B, L, ...], first [B, L], with episodes that begin within rows)."""
    spec, space = CASES[request.param]
    architecture, rng = TransformerArchitecture(spec, space, 7), np.random.default_rng(0)
    drawn = rng.integers(0, 7, (B, L)) if space is TOKENS else rng.normal(0, 1, (B, L, 3)).astype(np.float32)
    first = np.zeros((B, L), np.float32)
    first[0, 0] = first[1, 3] = first[1, 9] = first[2, L - 1] = 1
    return architecture, draw_all(architecture.parameters, rng), drawn, first


def stepped(step, array, values, observation, first, state):
    """Outputs [B, L, 7] and the last state, one step after the other as an agent acts."""
    outputs = []
    for t in range(L):
        output, state = step(values, array(observation[:, t]), array(state))
        outputs.append(np.asarray(output))
        if t < L - 1:
            state = np.asarray(state) * (1 - first[:, t + 1 : t + 2])
    return np.stack(outputs, 1), np.asarray(state)


def test_stepping_with_what_is_kept_is_the_whole_forward_pass(case, framework):
    architecture, own, observation, first = case
    state = np.zeros((B, architecture.state_size), np.float32)
    expected, last = stepped(architecture.step, np.asarray, own, observation, first, state)
    assert expected.dtype == np.float32 and expected.std() > 0.01
    values = {name: framework.array(value) for name, value in own.items()}
    step, unroll = (framework.compiled(function) for function in (architecture.step, architecture.unroll))
    steps, after = stepped(step, framework.array, values, observation, first, state)
    given = [framework.array(x) for x in (observation, state, first)]
    whole, states = unroll(values, *given)
    alone, none = framework.compiled(lambda x, first: architecture.unroll(values, x, None, first))(given[0], given[2])
    assert none is None
    for found in (steps, whole, alone, architecture.unroll(own, observation, state, first)[0]):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-5)
    following, _ = architecture.step(own, observation[:, 0], last)
    for found in (after, np.asarray(states)[:, -1]):
        np.testing.assert_allclose(architecture.step(own, observation[:, 0], found)[0], following, rtol=0, atol=1e-5)


def test_gradients_are_those_of_slopes(case, framework):
    architecture, values, observation, first = case
    names = list(values)
    given = framework.array(observation), None, framework.array(first)

    def loss(*arrays):
        outputs, _ = architecture.unroll(dict(zip(names, arrays, strict=True)), *given)
        return outputs * outputs

    found = framework.gradients(loss, *values.values())
    exact, rng, h = {name: value.astype(np.float64) for name, value in values.items()}, np.random.default_rng(1), 1e-5
    for name, gradient in zip(names, found, strict=True):
        at, slope = tuple(rng.integers(0, n) for n in exact[name].shape), 0.0
        for sign in (1, -1):
            moved = {**exact, name: exact[name].copy()}
            moved[name][at] += sign * h
            outputs, _ = architecture.unroll(moved, observation, None, first)
            slope += sign * np.square(outputs, dtype=float).sum() / (2 * h)
        assert gradient[at] == pytest.approx(slope, rel=5e-3, abs=1e-3), (name, at)


def test_attention_is_that_of_torch(framework, engine_name):
    if engine_name != "torch":
        pytest.skip("torch's attention is at hand where torch is the engine")
    import torch

    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(0, 1, (2, 3, 4, n)).astype(np.float32) for n in (8, 8, 8))
    mask = np.tril(np.ones((3, 3), bool))[None] | np.zeros((2, 3, 3), bool)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).transpose(1, 2) for x in (query, key, value)), is_causal=True
    ).transpose(1, 2)
    for array in (np.asarray, framework.array):
        pieces = ([array(x[:, :1]), array(x[:, 1:])] for x in (key, value))
        found = ops.attention(array(query), *pieces, array(mask))
        np.testing.assert_allclose(np.asarray(found), theirs.numpy(), rtol=0, atol=1e-6)
