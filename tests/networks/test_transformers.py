"""Transformers in NumPy: a slow program that looks at one step at a time, what they see, and what specs refuse."""

import math

import numpy as np
import pytest

from etude import algorithms
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary
from etude.networks import Conv, Maker, Mlp, RecurrentNetwork, Transformer
from etude.tuning.evolution import ArchitectureLimits, Mutation, Mutations
from etude.tuning.evolution.structure import shape_of

VECTOR, TOKENS = Box(-1.0, 1.0, (3,), np.float32), Discrete(6)
L = 9


def network(space=VECTOR, outputs=2, **fields) -> RecurrentNetwork:
    spec = Transformer(**{"layers": 2, "width": 8, "heads": 2, "feedforward": 12, "context": 4} | fields)
    return Maker(np.random.default_rng(1), None).recurrent(spec, space, outputs)


def normal(x):
    return (x - x.mean()) / math.sqrt(x.var() + 1e-6)


def turned(x, t):
    pairs = len(x) // 2
    found = np.empty_like(x)
    for i in range(pairs):
        angle = t * 10_000.0 ** (-i / pairs)
        found[i] = x[i] * math.cos(angle) - x[i + pairs] * math.sin(angle)
        found[i + pairs] = x[i] * math.sin(angle) + x[i + pairs] * math.cos(angle)
    return found


def slowly(net, observation):
    """Outputs of one episode, by loops over steps, heads and the steps that each sees, in float64."""
    spec, v = net.architecture.spec, {name: value.astype(float) for name, value in net.variables.items()}
    size, steps = spec.head_size or spec.width // spec.heads, len(observation)
    x = [row @ v["before.dense0.weight"] + v["before.dense0.bias"] for row in observation.astype(float)]
    if spec.positions == "learned":
        x = [row + v["position"][t % spec.context] for t, row in enumerate(x)]
    for i in range(spec.layers):

        def dense(name, row, block=f"block{i}."):
            return row @ v[f"{block}{name}.weight"] + v[f"{block}{name}.bias"]

        parts = [np.split(dense("attention.input", normal(row)), 3) for row in x]
        for t in range(steps):
            x[t] = x[t].copy()
            seen = range(max(0, t - spec.context + 1), t + 1)
            if not spec.causal:
                seen = range(max(0, t - spec.context + 1), min(steps, t + spec.context))
            heads = []
            for h in range(spec.heads):
                own = slice(h * size, (h + 1) * size)
                turn = turned if spec.positions == "rotary" else lambda row, t: row
                scores = [turn(parts[t][0][own], t) @ turn(parts[s][1][own], s) / math.sqrt(size) for s in seen]
                weights = np.exp(scores) / np.exp(scores).sum()
                heads.append(sum(w * parts[s][2][own] for w, s in zip(weights, seen, strict=True)))
            x[t] = x[t] + dense("attention.output", np.concatenate(heads))
        for t in range(steps):
            hidden = dense("feedforward.input", normal(x[t]))
            hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            x[t] = x[t] + dense("feedforward.output", hidden)
    if spec.tied:
        return np.stack([normal(row) @ v["before.dense0.weight"].T / math.sqrt(spec.width) for row in x])
    return np.stack([normal(row) @ v["after.dense0.weight"] + v["after.dense0.bias"] for row in x])


@pytest.mark.parametrize(
    "fields",
    [{}, {"positions": "learned"}, {"causal": False}, {"tied": True}, {"heads": 3, "head_size": 6}],
    ids=["rotary", "learned", "both ways", "tied", "heads of their own size"],
)
def test_a_slow_program_computes_the_same(fields):
    tied = "tied" in fields
    net, rng = network(TOKENS if tied else VECTOR, 6 if tied else 2, **fields), np.random.default_rng(2)
    observation = rng.integers(0, 6, L) if tied else rng.normal(0, 1, (L, 3)).astype(np.float32)
    expected = slowly(net, np.eye(6)[observation] if tied else observation)
    found, _ = net.unroll(observation[None], None)
    assert ("after.dense0.weight" in net.variables) is not tied
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5)


def test_a_step_sees_its_context_through_every_layer_and_nothing_across_a_reset():
    net, observation = network(), np.random.default_rng(2).normal(0, 1, (1, 12, 3)).astype(np.float32)
    other = observation.copy()
    other[:, 1] += 1
    first = np.zeros((1, 12), np.float32)
    changed = [(net.unroll(x, None, first)[0]) for x in (observation, other)]
    reach = 2 * 3  # layers times the steps before
    assert (changed[0] != changed[1]).any(-1)[0].tolist() == [False] + [True] * (1 + reach) + [False] * (10 - reach)
    first[0, 4] = 1
    changed = [(net.unroll(x, None, first)[0]) for x in (observation, other)]
    assert (changed[0] != changed[1]).any(-1)[0].tolist() == [False] + [True] * 3 + [False] * 8


def test_the_bits_of_a_row_do_not_depend_on_how_many_rows_there_are():
    net, rng = network(), np.random.default_rng(2)
    observation, state = rng.normal(0, 1, (19, 3)).astype(np.float32), np.zeros((19, net.state_size), np.float32)
    for _ in range(3):
        before, (output, state) = state, net(observation, state)
    for some in ([4], [0, 18], list(range(9))):
        for alone, expected in zip(net(observation[some], before[some]), (output, state), strict=True):
            np.testing.assert_array_equal(alone, expected[some])


def test_images_go_through_convolutions_and_action_masks_are_not_read():
    space = Dict({"image": Box(0, 255, (8, 8, 1), np.uint8), "v": VECTOR, "action_mask": MultiBinary(2)})
    net = network(space, before=Conv(((3, 4, 2),), (6,)))
    rng = np.random.default_rng(0)
    seen = {"image": rng.integers(0, 255, (2, 3, 8, 8, 1)), "v": rng.normal(0, 1, (2, 3, 3)).astype(np.float32)}
    outputs, _ = net.unroll(seen, None)
    assert outputs.shape == (2, 3, 2) and not net.portable and network().portable


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Transformer(width=10, heads=4), "width = 10, heads = 4, head_size = 0; expected heads of equal width"),
        (lambda: Transformer(width=6, heads=2), "each of an even number for rotary positions"),
        (lambda: Transformer(width=10, heads=4, head_size=3), "each of an even number for rotary positions"),
        (lambda: Transformer(positions="sine"), "positions = 'sine'; expected 'rotary' or 'learned'"),
        (lambda: Transformer(context=1), "context = 1; expected a whole number of at least 2 steps"),
        (lambda: Transformer(layers=0), "layers = 0; expected a whole number of at least 1"),
        (lambda: Transformer(before=8), r"before = 8; expected Mlp\(...\) or Conv"),
        (lambda: Transformer(before=Mlp(noisy=0.5)), "noisy = 0.5 of its layers"),
        (lambda: Transformer(tied=True, before=Mlp((8,))), "tied = True, before = Mlp"),
        (lambda: algorithms.R2D2Config(network=Transformer()), "R2D2Config: network is a Transformer"),
        (lambda: Maker(np.random.default_rng(0), None)(Transformer(), VECTOR, 2), "network is a Transformer, whose"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_tokens_are_needed_to_tie_and_steps_to_act():
    with pytest.raises(NetworkError, match="tied = True over Box.*expected Discrete observations"):
        network(tied=True)
    net = network(causal=False)
    with pytest.raises(ConfigError, match=r"causal = False sees whole sequences.*Give causal=True"):
        net(np.zeros((1, 3), np.float32), np.zeros((1, net.state_size), np.float32))


def test_evolution_changes_blocks_units_heads_and_the_encoder_within_limits_and_keeps_the_width_of_the_stream():
    config, rng = algorithms.RecurrentPPOConfig(network=Transformer(before=Mlp((40,)))), np.random.default_rng(0)
    limits = ArchitectureLimits(blocks=(1, 3), feedforward=(160, 320), heads=(3, 5))
    settings = Mutations(
        architecture=1, new_layer=0.5, activation=0.2, parameters=0, hyperparameters=0, none=0, network=limits
    )
    seen = set()
    for _ in range(200):
        before, (config, mutation) = config.network, settings(config, rng)
        spec = config.network
        assert spec != before and spec.width == 64 and spec.attention == 16 * spec.heads
        assert 1 <= spec.layers <= 3 and 160 <= spec.feedforward <= 320 and 3 <= spec.heads <= 5
        seen.add((mutation.kind, mutation.chain))
    kinds = ("add_units", "remove_units")
    assert seen >= {(kind, f"block.{name}") for kind in kinds for name in ("feedforward", "heads")}
    assert seen >= {("add_layer", "block"), ("remove_layer", "block"), ("add_units", "before.dense")}
    assert shape_of(Transformer()) == "transformer 2 x 64, heads 4, feedforward 256"
    assert str(Mutation("add_layer", "network", "block", 1, 256)) == "add layer block1 (256)"
    assert str(Mutation("remove_layer", "network", "block", -1, 256)) == "remove layer block (256)"
