"""What a mutation keeps of weights, optimizer moments and target networks, in NumPy."""

import numpy as np
import pytest
from mutated_agents import (
    TOKENS,
    VECTOR,
    Lineage,
    OneNetwork,
    SpecConfig,
    TwoCritics,
    WithState,
    candidates,
    layout_of,
    observations,
    outputs,
    state_of,
)

from etude.base.errors import NetworkError
from etude.networks import Mlp, Transformer
from etude.tuning.evolution import ActivationSample, Mutation, transfer
from etude.tuning.evolution.structure import (
    ADD_LAYER,
    ADD_UNITS,
    GROW_KERNEL,
    PARAMETERS,
    REMOVE_LAYER,
    REMOVE_UNITS,
    SHRINK_KERNEL,
)
from etude.tuning.evolution.transfer import MemberSurgery

GROWTH, REMOVALS = (ADD_LAYER, ADD_UNITS, GROW_KERNEL), (REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL)
EACH = 500


def mutate(kind, times, seed):
    """(lineage, mutation, outputs before, outputs after), so many times, over agents of random specs."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < times:
        lineage = Lineage(rng)
        for _ in range(6):
            found = list(candidates(lineage.config, [kind]))
            if not found or done == times:
                break
            config, mutation = found[rng.integers(len(found))]
            yield lineage, mutation, *lineage.mutate(config, mutation)
            done += 1


def relative_change(before, after):
    return np.linalg.norm(after - before) / np.linalg.norm(before)


@pytest.mark.parametrize("kind", GROWTH)
def test_growth_changes_no_output_whatever_the_spec(kind):
    for lineage, mutation, before, after in mutate(kind, EACH // 5, seed=1):
        assert relative_change(before, after) < 1e-5, (mutation, lineage.config.network)


@pytest.mark.long
@pytest.mark.parametrize("kind", GROWTH)
def test_five_hundred_random_growths_change_no_output(kind):
    for lineage, mutation, before, after in mutate(kind, EACH, seed=2):
        assert relative_change(before, after) < 1e-5, (mutation, lineage.config.network)


@pytest.mark.parametrize("kind", (*GROWTH, *REMOVALS))
def test_moments_and_the_lag_of_target_networks_follow_the_map_of_the_weights(kind):
    for lineage, _, _, _ in mutate(kind, EACH // 20, seed=3):
        (parent, old), child, new = lineage.before, lineage.layout, lineage.state
        for name in child.trainable:
            for moment in child.moments:
                assert new[moment][name].shape == child.initial[name].shape
                carried = new[moment][name][new[moment][name] != 0]
                assert np.isin(carried, np.concatenate([old[moment][n].reshape(-1) for n in parent.trainable])).all()
        if kind not in GROWTH:
            continue
        lag = sum(np.square(old["values"][f.source] - old["values"][f.target]).sum() for f in parent.following)
        kept = sum(np.square(new["values"][f.source] - new["values"][f.target]).sum() for f in child.following)
        np.testing.assert_allclose(kept, lag, rtol=1e-4)


def test_all_moments_are_carried_by_growth():
    for lineage, _, _, _ in mutate(ADD_UNITS, 20, seed=4):
        (parent, old), new = lineage.before, lineage.state
        for moment in parent.moments:
            total = sum(old[moment][name].sum(dtype=float) for name in parent.trainable)
            assert sum(
                new[moment][name].sum(dtype=float) for name in parent.trainable if name in new[moment]
            ) <= total * (1 + 1e-6)
            assert sum(x.sum(dtype=float) for x in new[moment].values()) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("kind", REMOVALS)
def test_removals_leave_networks_of_the_right_shapes_and_finite_outputs(kind):
    for lineage, _, _, after in mutate(kind, EACH // 10, seed=5):
        assert np.isfinite(after).all()
        assert {n: x.shape for n, x in lineage.state["values"].items()} == {
            n: x.shape for n, x in lineage.layout.initial.items()
        }
        parent = sum(x.size for x in lineage.before[0].initial.values())
        assert sum(x.size for x in lineage.layout.initial.values()) < parent, "a removal made the network larger"


def test_units_that_do_nothing_are_removed_without_a_trace():
    rng = np.random.default_rng(0)
    parent = layout_of(OneNetwork, SpecConfig(Mlp((40,), "relu")), VECTOR, 1)
    state = state_of(parent, rng)
    idle = rng.choice(40, 16, replace=False)
    for network in ("q", "q_target"):
        state["values"][f"{network}.dense0.weight"][:, idle] = 0  # constant: relu of their bias
        state["values"][f"{network}.dense0.bias"][idle] = 3.0
    child = layout_of(OneNetwork, SpecConfig(Mlp((24,), "relu")), VECTOR, 2)
    mutation = Mutation(REMOVE_UNITS, "network", "dense", 0, 16)
    x = observations(VECTOR, rng)
    after = transfer(state, parent, child, mutation, ActivationSample(x))
    before = outputs(parent, state["values"], x)
    assert relative_change(before, outputs(child, after["values"], x)) < 1e-5
    kept = np.setdiff1d(np.arange(40), idle)
    np.testing.assert_array_equal(after["first"]["q.dense0.weight"], state["first"]["q.dense0.weight"][:, kept])


def test_removing_a_layer_of_a_nearly_linear_network_changes_little():
    rng = np.random.default_rng(0)
    parent = layout_of(OneNetwork, SpecConfig(Mlp((16, 32), "tanh")), VECTOR, 1)
    state = state_of(parent, rng)
    state["values"] = {name: 0.05 * x for name, x in state["values"].items()}
    child = layout_of(OneNetwork, SpecConfig(Mlp((16,), "tanh")), VECTOR, 2)
    x = observations(VECTOR, rng)
    after = transfer(state, parent, child, Mutation(REMOVE_LAYER, "network", "dense", 1, 32), ActivationSample(x))
    assert relative_change(outputs(parent, state["values"], x), outputs(child, after["values"], x)) < 1e-3


@pytest.mark.parametrize("kind", (REMOVE_UNITS, SHRINK_KERNEL, REMOVE_LAYER))
def test_folding_means_changes_outputs_less_than_cutting_alone(kind, monkeypatch):
    folded = [relative_change(before, after) for *_, before, after in mutate(kind, 40, seed=6)]
    monkeypatch.setattr(MemberSurgery, "folded", lambda self, found: found)
    cut = [relative_change(before, after) for *_, before, after in mutate(kind, 40, seed=6)]
    assert np.mean(folded) < 0.8 * np.mean(cut)


GPT = Transformer(layers=3, width=12, heads=3, feedforward=40, context=4)


@pytest.mark.parametrize("chain", ("block", "block.feedforward", "block.heads"))
def test_what_a_transformer_gains_changes_no_logit_and_what_does_nothing_is_what_it_loses(chain):
    rng = np.random.default_rng(0)
    parent, x = layout_of(WithState, SpecConfig(GPT), TOKENS, 1), observations(TOKENS, rng)
    state, idle = state_of(parent, rng), {"block": [1], "block.feedforward": range(3, 35), "block.heads": [1]}[chain]
    for network in ("q", "q_target"):
        values = {name.removeprefix(f"{network}."): value for name, value in state["values"].items()}
        if chain == "block":
            for name in ("attention.output", "feedforward.output"):  # adds its biases, whatever it sees
                values[f"block1.{name}.weight"][:] = 0
        elif chain == "block.heads":
            for i in range(3):
                values[f"block{i}.attention.output.weight"][4:8] = 0
        else:
            for i in range(3):
                values[f"block{i}.feedforward.input.weight"][:, idle] = 0  # puts out a constant
    before = outputs(parent, state["values"], x)
    for config, mutation in candidates(parent.agent.config, (ADD_LAYER, ADD_UNITS, REMOVE_LAYER, REMOVE_UNITS)):
        if mutation.chain != chain or mutation.kind == REMOVE_UNITS and mutation.amount > len(idle):
            continue
        child = layout_of(WithState, config, TOKENS, 2)
        after = transfer(state, parent, child, mutation, ActivationSample(x))
        np.testing.assert_allclose(outputs(child, after["values"], x), before, rtol=0, atol=1e-5, err_msg=str(mutation))
        if mutation.kind == REMOVE_LAYER:  # the target network loses the same block
            for name in ("first", "values"):
                for network in ("q.", "q_target.")[: 1 if name == "first" else 2]:
                    kept = state[name][f"{network}block2.feedforward.input.weight"]
                    np.testing.assert_array_equal(after[name][f"{network}block1.feedforward.input.weight"], kept)
        if mutation.kind == REMOVE_UNITS and chain == "block.heads":
            kept = state["first"]["q.block0.attention.input.weight"].reshape(12, 3, 3, 4)[:, :, [0, 2]].reshape(12, -1)
            np.testing.assert_array_equal(after["first"]["q.block0.attention.input.weight"], kept)


def test_noise_on_parameters_moves_what_acts_and_its_target_network_alike():
    rng = np.random.default_rng(0)
    layout = layout_of(TwoCritics, SpecConfig(Mlp((32, 16))), VECTOR, 1)
    state, mutation = state_of(layout, rng), Mutation(PARAMETERS, strength=0.1, seed=3)
    sample = ActivationSample(observations(VECTOR, rng))
    after = transfer(state, layout, layout, mutation, sample)["values"]
    changed = {name for name, x in after.items() if not np.array_equal(x, state["values"][name])}
    assert changed == {f"actor.dense{i}.weight" for i in range(3)}
    moved = after["actor.dense0.weight"] != state["values"]["actor.dense0.weight"]
    assert 0.02 < moved.mean() < 0.2
    again = transfer(state, layout, layout, mutation, sample)["values"]
    assert all(np.array_equal(again[name], x) for name, x in after.items())

    one = layout_of(OneNetwork, SpecConfig(Mlp((32, 16))), VECTOR, 1)
    state = state_of(one, rng)
    after = transfer(state, one, one, mutation, sample)["values"]
    for following in one.following:
        lag = state["values"][following.target] - state["values"][following.source]
        np.testing.assert_allclose(after[following.target] - after[following.source], lag, atol=1e-6)
    assert not np.array_equal(after["q.dense0.weight"], state["values"]["q.dense0.weight"])


def test_the_transfer_refuses_networks_that_differ_by_more_than_the_mutation():
    parent = layout_of(OneNetwork, SpecConfig(Mlp((32, 16))), VECTOR, 1)
    child = layout_of(OneNetwork, SpecConfig(Mlp((32, 64))), VECTOR, 1)
    rng = np.random.default_rng(0)
    with pytest.raises(NetworkError, match="by more than the mutation"):
        transfer(state_of(parent, rng), parent, child, Mutation(), ActivationSample(observations(VECTOR, rng)))
