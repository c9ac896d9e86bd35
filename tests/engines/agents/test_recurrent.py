"""Recurrent networks on every engine: values, gradients, and torch's own cells where torch is the engine."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS

from etude.base.spaces import Box
from etude.networks import Mlp, Recurrent
from etude.networks.layers import draw_all
from etude.networks.recurrent import RecurrentArchitecture

SPACE = Box(-1.0, 1.0, (3,), np.float32)
B, L, UNITS = 4, 6, 5


@pytest.fixture(scope="module")
def framework(engine_name):
    return FRAMEWORKS[engine_name]()


@pytest.fixture(params=["gru", "lstm"])
def architecture(request):
    return RecurrentArchitecture(Recurrent(Mlp((4,), "tanh"), UNITS, request.param, (4,)), SPACE, 2)


def inputs(architecture, dtype=np.float32):
    """(values, observation, memory, first, trained): `first` within rows; two rows begin with steps not trained."""
    rng = np.random.default_rng(0)
    values = {name: value.astype(dtype) for name, value in draw_all(architecture.parameters, rng).items()}
    observation, state = (rng.normal(0, 1, (B, *shape)).astype(dtype) for shape in ((L, 3), (architecture.state_size,)))
    first, trained = np.zeros((B, L), dtype), np.ones((B, L), dtype)
    first[0, 0] = first[1, 3] = first[2, L - 1] = 1
    trained[2:, :2] = 0
    return values, observation, state, first, trained


def test_sequences_agree_with_numpy(architecture, framework):
    values, *others = inputs(architecture)
    expected = architecture.unroll(values, *others)
    found = architecture.unroll(
        {name: framework.array(value) for name, value in values.items()}, *map(framework.array, others)
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(framework.numpy(mine), theirs, rtol=1e-5, atol=1e-6)


def loss(architecture, values, observation, state, first, trained):
    """[B, L, 2] of the trained steps."""
    outputs, _ = architecture.unroll(values, observation, state, first, trained)
    return outputs * outputs * trained[:, :, None]


def held(architecture, values, observation, state, first, trained):
    """A function of the values whose slope is the gradient of `loss`: burnt in with values that stay as they are."""
    burnt = state.copy()
    for t in range(2):
        _, after = architecture.step(values, observation[2:, t], np.where(first[2:, t, None] > 0, 0, burnt[2:]))
        burnt[2:] = after

    def total(moved):
        whole, _ = architecture.unroll(moved, observation[:2], state[:2], first[:2])
        rest, _ = architecture.unroll(moved, observation[2:, 2:], burnt[2:], first[2:, 2:])
        return (whole**2).sum() + (rest**2).sum()

    return total


def test_gradients_are_slopes_and_do_not_flow_into_steps_that_only_burn_in(architecture, framework):
    values, *others = inputs(architecture)
    names, constants = list(values), [framework.array(x) for x in others]
    found = framework.gradients(
        lambda *arrays: loss(architecture, dict(zip(names, arrays, strict=True)), *constants), *values.values()
    )
    exact, *others = inputs(architecture, np.float64)
    total, rng, h = held(architecture, exact, *others), np.random.default_rng(5), 1e-5
    for name, gradient in zip(names, found, strict=True):
        for _ in range(3):
            at = tuple(rng.integers(0, n) for n in exact[name].shape)
            slopes = []
            for sign in (1, -1):
                moved = {**exact, name: exact[name].copy()}
                moved[name][at] += sign * h
                slopes.append(sign * total(moved))
            assert gradient[at] == pytest.approx(sum(slopes) / (2 * h), rel=2e-3, abs=2e-4), (name, at)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_compute_what_those_of_torch_do(cell, engine_name):
    if engine_name != "torch":
        pytest.skip("torch's cells are at hand where torch is the engine")
    import torch

    architecture = RecurrentArchitecture(Recurrent(Mlp(()), UNITS, cell), SPACE, 2)
    values, observation, state, _, _ = inputs(architecture)
    kind = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    theirs = kind(3, UNITS, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.tensor(values["cell.input.weight"].T))
        theirs.weight_hh_l0.copy_(torch.tensor(values["cell.memory.weight"].T))
        values["cell.input.bias"] = theirs.bias_ih_l0.numpy().copy()
        if cell == "gru":
            values["cell.memory.bias"] = theirs.bias_hh_l0.numpy().copy()
        else:
            values["cell.input.bias"] += theirs.bias_hh_l0.numpy()
        start = [torch.tensor(part)[None] for part in np.split(state, state.shape[1] // UNITS, 1)]
        hidden, last = theirs(torch.tensor(observation), start[0] if cell == "gru" else tuple(start))
    outputs, states = architecture.unroll(values, observation, state, np.zeros((B, L), np.float32))
    last = last if cell == "gru" else torch.cat(last, -1)
    np.testing.assert_allclose(states[:, -1], last[0].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(states[..., :UNITS], hidden.numpy(), rtol=1e-5, atol=1e-6)
    expected = hidden.numpy() @ values["after.dense0.weight"] + values["after.dense0.bias"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
