"""Weights, state and randomness of agents of one's own."""

import random

import numpy as np
import pytest
from cases import BOTH, variants_but
from run_cases import differences
from solo_cases import agents_of, batches, engine_for

from etude import checkpoint
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.solo import engines

KINDS = ("DQN", "PPO", "DDPG", "Noisy")


def used(kind, engine_name, calls=2, seed=0):
    engine = engine_for(getattr(agents_of(engine_name), kind)(), engine_name, seed=seed)
    for i in range(calls):
        go_on(engine, kind, i)
    return engine


def go_on(engine, kind, i):
    losses = engine.learn(batches(k=3, seed=i, continuous=kind == "DDPG"), {}).losses
    engine.update_param()
    return [*losses.values(), *np.ravel(engine.act(batches(seed=i).observation[0]))]


@pytest.mark.parametrize("kind", variants_but({"DQN": BOTH, "Noisy": ("jax",)}, KINDS))
def test_a_restored_engine_goes_on_bit_for_bit(kind, engine_name, tmp_path):
    engine = used(kind, engine_name)
    checkpoint.write(tmp_path / "agent.etude", {"engine": engine.state()})
    expected = [go_on(engine, kind, i) for i in (2, 3)]
    again = engine_for(getattr(agents_of(engine_name), kind)(), engine_name, seed=99)
    for name, value in again.weights().items():  # of another seed
        if value.dtype == np.float32:
            again.load({name: value + 1})
    again.restore(checkpoint.read(tmp_path / "agent.etude")["engine"])
    assert [go_on(again, kind, i) for i in (2, 3)] == expected
    assert differences(engine.state(), again.state()) == []


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(engine_name):
    if engine_name == "torch":
        results = [go_on(used("Noisy", engine_name, 1, seed), "Noisy", 1) for seed in (5, 5, 6)]
        assert results[0] == results[1]
        assert results[0] != results[2]
    else:
        engine = used("Noisy", engine_name, 1)
        observation = batches().observation[0]
        assert not np.array_equal(engine.act(observation), engine.act(observation))
        assert go_on(used("Noisy", engine_name, 1), "Noisy", 1) == go_on(used("Noisy", engine_name, 1), "Noisy", 1)


def test_the_random_numbers_of_the_program_are_left_alone(engine_name):
    engine = used("Noisy", engine_name)
    if engine_name == "torch":
        import torch

        draw = lambda: float(torch.rand(()))  # noqa: E731
        torch.manual_seed(1)
    else:
        draw = random.random
        random.seed(1)
    np.random.seed(1)
    expected = draw(), np.random.rand()
    if engine_name == "torch":
        torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    go_on(engine, "Noisy", 5)
    assert engine.exportable is False
    assert (draw(), np.random.rand()) == expected


def test_looking_for_what_can_be_exported_leaves_everything_as_it_was(engine_name):
    for kind in ("Noisy", "DQN"):
        engine, other = used(kind, engine_name), used(kind, engine_name)
        before = engine.state()
        assert engine.exportable == (kind == "DQN")
        assert differences(before, engine.state()) == []
        assert go_on(engine, kind, 4) == go_on(other, kind, 4)


def test_weights_have_stable_names_and_can_be_loaded_one_by_one(engine_name):
    engine, other = used("DDPG", engine_name), used("DDPG", engine_name, 0)
    assert list(engine.weights()) == list(other.weights())
    assert {name.split(".")[0] for name in engine.weights()} == {"actor", "critic", "targets"}
    name = next(name for name in engine.weights() if name.startswith("targets.critic"))
    before = other.weights()
    other.load({name: engine.weights([name])[name]})
    after = other.weights()
    assert [key for key in after if not np.array_equal(after[key], before[key])] == [name]
    other.variables.load_trained(engine.parameters())
    assert differences(other.parameters(), engine.parameters()) == []
    assert {key.split(".")[0] for key in other.parameters()} == {"actor", "critic"}


def test_weights_are_read_and_loaded_without_an_engine(engine_name):
    framework = agents_of(engine_name)
    engine = used("DQN", engine_name)

    class Named(framework.DQN):
        framework = "torch" if engine_name == "torch" else "keras"

    agent = Named()
    engines.load_weights(agent, engine.weights())
    assert differences(engines.weights(agent), engine.weights()) == []
    assert differences(engines.parameters(agent), engine.parameters()) == []
    engines.load_parameters(agent, {name: value * 0 for name, value in engines.parameters(agent).items()})
    s = batches().observation[0]
    act = engines.acting_engine(agent, engine.spaces, lambda observation: observation).act
    np.testing.assert_array_equal(act(s), np.zeros((8, 2), np.float32))
    with pytest.raises(NetworkError, match="lack"):
        engines.load_parameters(agent, {})


def test_weights_that_do_not_fit_are_named(engine_name):
    engine = used("DQN", engine_name, 0)
    name = min(engine.parameters())
    with pytest.raises(NetworkError, match=r"no weight named 'other'; the agent has q\.0"):
        engine.load({"other": np.zeros(3)})
    with pytest.raises(NetworkError, match=rf"{name}.* has shape \(5,\); the agent's has"):
        engine.load({name: np.zeros(5, np.float32)})
    with pytest.raises(NetworkError, match=f"lack '{name}', which param of DQN holds"):
        engine.variables.load_trained({})


def test_a_state_of_torch_is_no_state_of_keras(engine_name):
    engine = used("DQN", engine_name, 0)
    other = "jax" if engine_name == "torch" else "torch"
    with pytest.raises(CheckpointError, match=f"was saved on {other}; its optimizer cannot go on on {engine_name}"):
        engine.check_state(Stored({**engine.state(), "framework": other}, "engine"))


def test_networks_that_are_built_when_they_are_called_are_found(engine_name):
    if engine_name == "torch":
        pytest.skip("modules of torch are whole when they are made")
    engine = engine_for(agents_of(engine_name).Lazy(), engine_name)
    before = engine.weights()
    engine.learn(batches(), {})
    assert set(engine.weights()) - set(before) == {"baseline.0.kernel", "baseline.1.bias"}
    assert engine.weights()["draws.state"].tolist() == [1, 4], "one draw for each step, none for building"


def test_an_engine_without_optimizers_acts_and_does_not_learn(engine_name):
    engine = engine_for(agents_of(engine_name).DQN(), engine_name, optimizers=[])
    assert engine.act(batches().observation[0]).shape == (8, 2)
    with pytest.raises(ConfigError, match="no optimizer"):
        engine.learn(batches(), {})
