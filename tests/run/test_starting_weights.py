"""Runs that start from the weights of others: `Run(start_from=)`."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY

import etude
from etude import Mlp, Run
from etude.algorithms import BCConfig
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.base.events import Started, Warned
from etude.checkpoint import tensors
from etude.examples.experts import balance, play

ENV = "CartPole-v1"
SAME = {"engine": "torch", "environments": 2}


def run(algorithm="dqn", config=DQN_TINY, env=ENV, **more):
    return Run(algorithm, env, config=config, **{**SAME, "seed": 5, **more})


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory of a run, and its weights."""
    path = tmp_path_factory.mktemp("start") / "run"
    config = dataclasses.replace(DQN_TINY, normalize_observation=True)
    with run(config=config, run_dir=path) as made:
        made.train(64)
        return path, made.engine.weights(), made.learner.moments.state()


def test_ppo_begins_at_the_return_of_behaviour_cloning():
    network = Mlp((32,), "tanh")
    config = BCConfig(network=network, learning_rate=1e-2)
    with Run("bc", ENV, data=play(balance, ENV, 5), config=config, engine="torch") as cloned:
        cloned.train(300)
        before, weights = cloned.evaluate(5, max_steps=200), cloned.engine.weights()
    config = etude.config("ppo", ENV, network=network)
    with run("ppo", config, start_from=weights) as begun, run("ppo", config) as plain:
        assert begun.evaluate(5, max_steps=200) == before and before.mean == 200
        assert plain.evaluate(5, max_steps=200).mean < 100
        for name, weight in weights.items():
            assert np.array_equal(begun.engine.weights()[name.replace("actor.", "model.")], weight)
        events = list(begun.steps(128))
    assert [event for event in events if isinstance(event, Started)][0].description["started_from"]["drawn"][0] == (
        "model.critic.dense0.weight"
    )
    said = [event.message for event in events if isinstance(event, Warned)]
    assert "4 of 8 weights were taken from the given arrays. Not in it: model.critic.dense0.weight" in said[0]


def test_a_run_directory_a_checkpoint_and_a_file_of_safetensors_give_the_same_weights(trained, tmp_path):
    path, weights, moments = trained
    config = dataclasses.replace(DQN_TINY, normalize_observation=True)
    checkpoint = next((path / "checkpoints").glob("*.etude"))
    for source in (path, str(path), checkpoint):
        with run(config=config, start_from=source) as begun:
            assert equal(begun.engine.weights(), weights)
            assert str(begun.learner.moments.state()) == str(moments)
            assert not [event for event in begun.steps(16) if isinstance(event, Warned)]
    file = tmp_path / "weights.safetensors"
    plain = {name: array for name, array in weights.items() if not name.startswith("normaliser")}
    file.write_bytes(b"".join(tensors.encode(weights)))
    with run(start_from=file) as begun:
        assert equal(begun.engine.weights(), plain)
        assert "Not used of it: normaliser.all.mean" in begun._started_from.note


def test_a_run_that_started_from_others_weights_goes_on_from_its_own_file(trained, tmp_path):
    with run(start_from=trained[0]) as whole, run(start_from=trained[0]) as half:
        whole.train(64)
        half.learner.progress.total = 64
        half.train(32)
        half.save(tmp_path / "half.etude")
        with etude.load(tmp_path / "half.etude") as rest:
            rest.train(32)
            assert equal(rest.engine.weights(), whole.engine.weights())


def test_workers_act_with_the_weights_that_a_run_starts_from(trained):
    states = []
    for workers in (0, 2):
        with run(start_from=trained[0], workers=workers) as begun:
            begun.train(48)
            states.append(begun.engine.weights())
    assert equal(*states)


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ({"a.b": np.zeros(3)}, ConfigError, r"no weight of the given arrays agrees .* It has a.b; DQN has q.dense0.w"),
        ({}, ConfigError, "It has none; DQN has"),
        ({"q.dense0.weight": np.zeros((4, 9))}, NetworkError, r"has shape \(4, 9\), float64; the agent's q.dense0"),
        ({"q.dense0.bias": np.full(4, np.nan)}, NetworkError, "of finite numbers"),
        ({"q.dense0.bias": np.array(["a"] * 4)}, NetworkError, "q.dense0.bias of the given arrays has shape"),
        (3, ConfigError, "start_from is a int; expected a run directory, a checkpoint"),
        ("nowhere", CheckpointError, "There is no run at nowhere"),
    ],
)
def test_what_no_run_can_start_from_is_refused(source, error, said):
    with pytest.raises(error, match=said):
        run(start_from=source)


def test_files_that_may_run_code_or_are_broken_are_refused(tmp_path):
    pickled, broken = tmp_path / "agent.pt", tmp_path / "broken.safetensors"
    pickled.write_bytes(pickle.dumps({"q.dense0.weight": [1]}))
    broken.write_bytes(json.dumps({"a": 1}).encode())
    with pytest.raises(ConfigError, match="Other files may run code when they are read"):
        run(start_from=pickled)
    with pytest.raises(CheckpointError, match="broken.safetensors is no file of safetensors"):
        run(start_from=broken)
    with pytest.raises(CheckpointError, match="cannot be read"):
        run(start_from=tmp_path / "none.safetensors")


def test_names_that_agree_with_several_weights_are_not_taken():
    arrays = {f"{start}.policy.dense0.bias": np.zeros(4, np.float32) for start in ("one", "two")}
    with pytest.raises(ConfigError, match="no weight of the given arrays agrees"):
        run("ppo", PPO_TINY, start_from=arrays)
    with run("ppo", PPO_TINY, start_from={"policy.dense0.bias": np.full(4, 7, np.float32)}) as begun:
        assert begun.engine.weights()["model.policy.dense0.bias"].tolist() == [7] * 4


def test_a_loaded_run_starts_from_nothing_else(tmp_path):
    with run() as saved:
        saved.save(tmp_path / "run.etude")
    with pytest.raises(ConfigError, match="a loaded run goes on with its own weights"):
        etude.load(tmp_path / "run.etude", start_from={"q.dense0.bias": np.zeros(4, np.float32)})
