"""The head of an autoregressive policy, in NumPy, against one small network for each combination of choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from etude import Mlp
from etude.networks import Maker

SIZES, WIDTH = (3, 2, 4), 8


@pytest.fixture
def head():
    part = Maker(np.random.default_rng(1), None).conditional(SIZES, Mlp((WIDTH, 5), "tanh", "orthogonal"))
    rng = np.random.default_rng(2)
    return part.bound({name: rng.standard_normal(x.shape).astype(np.float32) for name, x in part.variables.items()})


def by_hand(head, x, i, before):
    values = head.variables
    hidden = x[i * WIDTH : (i + 1) * WIDTH] + sum(values[f"part{i}.choice{j}"][a] for j, a in enumerate(before))
    hidden = np.tanh(hidden)
    for k in range(1):
        hidden = np.tanh(hidden @ values[f"part{i}.dense{k}.weight"] + values[f"part{i}.dense{k}.bias"])
    return hidden @ values[f"part{i}.dense1.weight"] + values[f"part{i}.dense1.bias"]


def test_logits_of_every_combination_are_those_of_its_own_network(head):
    x = np.random.default_rng(3).standard_normal((4, 3 * WIDTH)).astype(np.float32)
    logits = head(x)
    assert [part.shape for part in logits] == [(4, 1, 3), (4, 3, 2), (4, 6, 4)]
    for i, part in enumerate(logits):
        for row, before in enumerate(itertools.product(*map(range, SIZES[:i]))):
            expected = [by_hand(head, each, i, before) for each in x]
            np.testing.assert_allclose(part[:, row], expected, rtol=1e-4, atol=1e-5)


def test_batches_of_sequences_are_taken_as_they_are(head):
    x = np.random.default_rng(3).standard_normal((4, 5, 3 * WIDTH)).astype(np.float32)
    for long, flat in zip(head(x), head(x.reshape(20, -1)), strict=True):
        np.testing.assert_array_equal(long.reshape(flat.shape), flat)


def test_the_first_policy_is_nearly_uniform():
    part = Maker(np.random.default_rng(1), None).conditional(SIZES, Mlp((64,), "tanh", "orthogonal"))
    x = np.random.default_rng(3).standard_normal((4, 3 * 64)).astype(np.float32)
    assert max(np.abs(logits).max() for logits in part(x)) < 0.1
