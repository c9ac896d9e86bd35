"""Recurrent networks in NumPy: a step, the same steps over sequences, and what they remember."""

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, zeros
from etude.networks import ByEmbedding, Conv, Maker, Mlp, Recurrent, RecurrentNetwork

VECTOR = Box(-1.0, 1.0, (3,), np.float32)
MIXED = Dict(
    {"image": Box(0, 255, (8, 8, 1), np.uint8), "place": Discrete(4), "v": VECTOR, "action_mask": MultiBinary(2)}
)
B, L = 5, 7


def network(cell="gru", space=VECTOR, **fields) -> RecurrentNetwork:
    spec = Recurrent(**{"before": Mlp((6,)), "units": 4, "cell": cell, "widths": (5,)} | fields)
    return Maker(np.random.default_rng(1), None).recurrent(spec, space, 2)


def draw(space, *shape):
    rng = np.random.default_rng(2)
    if isinstance(space, Dict):
        return {key: draw(part, *shape) for key, part in space.spaces.items()}
    like = zeros(space, *shape)
    return rng.normal(0, 1, like.shape).astype(like.dtype) if space is VECTOR else rng.integers(0, 2, like.shape)


def rows(tree, index):
    return {key: rows(part, index) for key, part in tree.items()} if isinstance(tree, dict) else tree[index]


NETWORKS = {
    "gru": (lambda: network("gru"), VECTOR),
    "lstm": (lambda: network("lstm"), VECTOR),
    "nothing before the cell": (lambda: network(before=Mlp(()), widths=()), VECTOR),
    "images and more": (lambda: network("lstm", MIXED, before=Conv(((3, 4, 2),), (6,))), MIXED),
}
every_network = pytest.mark.parametrize(("make", "space"), NETWORKS.values(), ids=NETWORKS)


def stepped(net, observation, state, first):
    """(outputs [B, L, 2], memories [B, L, M]), one step after the other as an agent acts."""
    outputs, states = [], []
    for t in range(first.shape[1]):
        state = np.where(first[:, t, None] == 1, np.float32(0.0), state)
        output, state = net(rows(observation, (slice(None), t)), state)
        outputs.append(output)
        states.append(state)
    return np.stack(outputs, 1), np.stack(states, 1)


@every_network
def test_a_sequence_gives_what_its_steps_give_bit_for_bit_with_resets_inside(make, space):
    net, observation = make(), draw(space, B, L)
    state = np.random.default_rng(3).normal(0, 1, (B, net.state_size)).astype(np.float32)
    first = (np.random.default_rng(4).random((B, L)) < 0.3).astype(np.float32)
    assert 0 < first.sum() < B * L
    for found, expected in zip(
        net.unroll(observation, state, first), stepped(net, observation, state, first), strict=True
    ):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


@every_network
@pytest.mark.parametrize("cut", [1, 3, L - 1])
def test_a_sequence_that_is_cut_goes_on_from_the_memory_at_the_cut(make, space, cut):
    net, observation, first = make(), draw(space, B, L), np.zeros((B, L), np.float32)
    first[:, 2] = 1
    state = np.zeros((B, net.state_size), np.float32)
    whole, _ = net.unroll(observation, state, first)
    head, states = net.unroll(rows(observation, np.s_[:, :cut]), state, first[:, :cut])
    tail, _ = net.unroll(rows(observation, np.s_[:, cut:]), states[:, -1], first[:, cut:])
    np.testing.assert_array_equal(np.concatenate([head, tail], 1), whole)


@every_network
def test_the_bits_of_a_row_do_not_depend_on_how_many_rows_there_are(make, space):
    net, observation = make(), rows(draw(space, 19, 1), np.s_[:, 0])
    state = np.random.default_rng(3).normal(0, 1, (19, net.state_size)).astype(np.float32)
    together = net(observation, state)
    for some in ([4], [0, 18], list(range(9))):
        for alone, expected in zip(net(rows(observation, some), state[some]), together, strict=True):
            np.testing.assert_array_equal(alone, expected[some])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_outputs_depend_on_what_came_before_and_not_across_a_reset(cell):
    net, observation, state = network(cell), draw(VECTOR, 1, L), np.zeros((1, network(cell).state_size), np.float32)
    other = observation.copy()
    other[:, 0] += 1.0
    none, reset = np.zeros((1, L), np.float32), np.float32([[0, 0, 0, 1, 0, 0, 0]])
    assert (net.unroll(observation, state, none)[0] != net.unroll(other, state, none)[0]).any(-1).all()
    same = (net.unroll(observation, state, reset)[0] == net.unroll(other, state, reset)[0]).all(-1)
    assert same.tolist() == [[False] * 3 + [True] * 4]


def one_unit(cell, state, **values):
    """The next memory of a cell of one unit, fed with 2, by weights of one number for each gate."""
    net = network(cell, Box(-9, 9, (1,), np.float32), before=Mlp(()), units=1, widths=())
    given = {name: np.float32(value).reshape(net.variables[name].shape) for name, value in values.items()}
    bound = net.bound({**net.variables, **given})
    return bound(np.float32([[2.0]]), np.float32([state]))[1][0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_gru_worked_by_hand():
    found = one_unit(
        "gru",
        [0.5],
        **{"cell.input.weight": [0.1, 0.2, 0.3], "cell.input.bias": [0.4, 0.5, 0.6]},
        **{"cell.memory.weight": [0.7, 0.8, 0.9], "cell.memory.bias": [1.0, 1.1, 1.2]},
    )
    reset = sigmoid(0.1 * 2 + 0.4 + 0.7 * 0.5 + 1.0)
    update = sigmoid(0.2 * 2 + 0.5 + 0.8 * 0.5 + 1.1)
    new = np.tanh(0.3 * 2 + 0.6 + reset * (0.9 * 0.5 + 1.2))
    np.testing.assert_allclose(found, [(1 - update) * new + update * 0.5], rtol=1e-6)


def test_an_lstm_worked_by_hand():
    found = one_unit(
        "lstm",
        [0.5, -0.3],
        **{"cell.input.weight": [0.1, 0.2, 0.3, 0.4], "cell.input.bias": [0.5, 0.6, 0.7, 0.8]},
        **{"cell.memory.weight": [0.9, 1.0, 1.1, 1.2]},
    )
    enter, forget, leave = (
        sigmoid(w * 2 + b + m * 0.5) for w, b, m in [(0.1, 0.5, 0.9), (0.2, 0.6, 1.0), (0.4, 0.8, 1.2)]
    )
    cell = forget * -0.3 + enter * np.tanh(0.3 * 2 + 0.7 + 1.1 * 0.5)
    np.testing.assert_allclose(found, [leave * np.tanh(cell), cell], rtol=1e-6)


def test_an_lstm_starts_out_remembering_and_recurrent_weights_start_orthogonal():
    net = network("lstm", units=3)
    assert net.variables["cell.input.bias"].tolist() == [0] * 3 + [1] * 3 + [0] * 6
    weight = net.variables["cell.memory.weight"]
    np.testing.assert_allclose(weight @ weight.T, np.eye(3), atol=1e-6)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Recurrent(8), r"Recurrent: before = 8; .*as in Recurrent\(before=Mlp\(\(64,\)\), units=64"),
        (lambda: Recurrent((8,)), r"Recurrent: before = \(8,\); expected Mlp\(...\) or Conv"),
        (lambda: Recurrent(units=(8,)), r"Recurrent: units = \(8,\); expected a whole number"),
        (lambda: Recurrent(widths=8), r"Recurrent: widths = 8; expected a tuple of whole numbers, such as \(64,\)"),
        (lambda: Mlp(8), "Mlp: widths = 8; expected a tuple of whole numbers"),
        (lambda: Mlp(64, 64), "Mlp: widths = 64; expected a tuple"),
        (lambda: Mlp("64"), "Mlp: widths = '64'; expected a tuple"),
        (lambda: Conv(8), r"Conv: filters = 8; expected a tuple of \(filters, kernel, stride\)"),
        (lambda: Conv((8,)), r"Conv: filters = \(8,\); expected \(filters, kernel, stride\) of each layer"),
        (lambda: Conv(widths=8), "Conv: widths = 8; expected a tuple"),
        (lambda: ByEmbedding(network=8), "ByEmbedding: network = 8; expected Mlp"),
    ],
)
def test_specs_name_the_field_that_was_given_something_else(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_specs_refuse_what_cannot_be():
    with pytest.raises(ConfigError, match="cell = 'rnn'; expected 'gru' or 'lstm'"):
        Recurrent(cell="rnn")
    with pytest.raises(ConfigError, match="at least one unit; got units 0"):
        Recurrent(units=0)
    make = Maker(np.random.default_rng(0), None)
    with pytest.raises(ConfigError, match="Recurrent, whose recurrent state this algorithm does not keep"):
        make(Recurrent(), VECTOR, 2)
    with pytest.raises(ConfigError, match=r"keeps no recurrent state.*Recurrent\("):
        make.recurrent(Mlp((4,)), VECTOR, 2)
