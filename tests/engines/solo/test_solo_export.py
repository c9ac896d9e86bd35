"""Which agents of one's own act in plain NumPy, in workers that import no framework."""

import pickle
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from run_cases import differences
from solo_cases import S, agents_of, batches, engine_for

from etude.base.errors import NetworkError
from etude.base.spaces import Box, Dict, Discrete, Spaces
from etude.networks.dense import Activation, Affine, DenseActor

NAMES = ("relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "softmax", "linear")


def agent_with(network, framework):
    """An agent that acts with a network of its own."""
    agent = framework.DQN()
    agent.q = network
    agent.param = framework.variables(network)
    return agent


@pytest.mark.parametrize("activation", NAMES)
def test_dense_layers_with_this_activation_act_in_numpy(activation, engine_name):
    framework = agents_of(engine_name)
    engine = engine_for(agent_with(framework.dense_network(activation), framework), engine_name)
    assert engine.exportable
    s = np.random.default_rng(3).standard_normal((9, S)).astype(np.float32) * 3
    np.testing.assert_allclose(engine.actor().act(s), engine.act(s), rtol=1e-4, atol=1e-5)


def test_the_actor_follows_what_is_learned(engine_name):
    engine = engine_for(agents_of(engine_name).DQN(), engine_name)
    actor, s = engine.actor(), batches().observation[0]
    before = actor.act(s)
    for _ in range(5):
        engine.learn(batches(), {})
    assert np.array_equal(actor.act(s), before)
    actor.load(engine.weights(actor.names))
    assert not np.allclose(actor.act(s), before)
    np.testing.assert_allclose(actor.act(s), engine.act(s), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(actor.act(s), engine.actor().act(s))


def test_a_target_network_with_the_same_values_is_told_apart(engine_name):
    framework = agents_of(engine_name)
    for kind, network in (("DQN", "q"), ("PPO", "old")):  # each has another network with the same values
        engine = engine_for(getattr(framework, kind)(), engine_name)
        before = engine.weights()
        assert {name.split(".")[0] for name in engine.actor().names} == {network}
        assert differences(before, engine.weights()) == []


def test_a_sequential_within_a_model_is_found(engine_name):
    framework = agents_of(engine_name)
    network = framework.Subclassed()
    if engine_name != "torch":
        network(np.zeros((1, S), np.float32))
    assert engine_for(agent_with(network, framework), engine_name).exportable


def test_what_is_more_than_the_network_is_not_exported(engine_name):
    framework = agents_of(engine_name)

    class Scaled(framework.DQN):
        def action(self, s):
            return 2.0 * self.q(s)

    class Twice(framework.DQN):
        def action(self, s):
            return self.q(s), self.target(s)

    for agent in (Scaled(), Twice()):
        engine = engine_for(agent, engine_name)
        assert not engine.exportable
        assert engine.actor() is None


def test_observations_are_converted_for_workers_as_for_the_agent(engine_name):
    box = Box(-1.0, 1.0, (1,), np.float32)
    spaces = Spaces(Dict({"a": box, "b": Box(0.0, 9.0, (2,), np.float32)}), Discrete(2))
    join = lambda observation: np.concatenate([observation["a"], observation["b"]], -1)  # noqa: E731
    engine = engine_for(agents_of(engine_name).DQN(), engine_name, spaces=spaces, convert=join)
    observation = {"a": np.ones((4, 1), np.float32), "b": np.zeros((4, 2), np.float32)}
    assert engine.exportable
    np.testing.assert_allclose(engine.actor().act(observation), engine.act(observation), rtol=1e-4, atol=1e-5)


def test_a_worker_imports_no_framework(engine_name, tmp_path):
    engine = engine_for(agents_of(engine_name).DQN(), engine_name, convert=np.asarray)
    (tmp_path / "actor").write_bytes(cloudpickle.dumps(engine.actor()))
    program = (
        "import pickle, sys, numpy as np; actor = pickle.load(open(sys.argv[1], 'rb')); "
        "out = actor.act(np.ones((2, 3), np.float32)); "
        "sys.exit(out.shape != (2, 2) or bool({'torch', 'keras', 'jax', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "actor")], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


def chain():
    rng = np.random.default_rng(0)
    weights = {"k": rng.standard_normal((4, 3)).astype(np.float32), "b": np.ones(4, np.float32)}
    return [Affine("k", "b", transposed=True), Activation("relu")], weights


def test_a_dense_actor_computes_its_layers():
    layers, weights = chain()
    actor = DenseActor(layers, weights, np.asarray)
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(actor.act(x), np.maximum(x @ weights["k"].T + 1, 0), rtol=1e-6)
    np.testing.assert_array_equal(actor.act(x[:1])[0], actor.act(x)[0])
    again = pickle.loads(pickle.dumps(actor))
    np.testing.assert_array_equal(again.act(x), actor.act(x))
    again.load({"b": np.zeros(4, np.float32)})
    assert not np.array_equal(again.act(x), actor.act(x))


def test_a_dense_actor_names_weights_that_do_not_fit():
    actor = DenseActor(*chain(), np.asarray)
    with pytest.raises(NetworkError, match="no weight named 'c' in the exported network; it has k, b"):
        actor.load({"c": np.zeros(4)})
    with pytest.raises(NetworkError, match=r"'b' has shape \(5,\); the network's has \(4,\)"):
        actor.load({"b": np.zeros(5)})
