"""Dropout and batch renormalisation of dense layers, in NumPy."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import etude
from etude import ActorCritic, Mlp
from etude.algorithms import DQN, SAC, CrossQConfig, DQNConfig, SACConfig
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine
from etude.networks.layers import dropped
from etude.networks.maker import Maker
from etude.networks.specs import Recurrent

VECTOR, ARM = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)
RNG = np.random.default_rng(0)
X = np.ones((4_000, 50), np.float32)


def network(spec, members=None):
    return Maker(np.random.default_rng(1), None)(spec, VECTOR, 2, members)


def test_units_are_dropped_with_their_probability_and_independently():
    examples, units = RNG.standard_normal(4_000, np.float32), RNG.standard_normal(50, np.float32)
    gone = dropped(examples, units, (0.2, 0, 50), X) == 0
    assert gone.mean() == pytest.approx(0.2, abs=0.01)
    assert gone.mean(0) == pytest.approx(np.full(50, 0.2), abs=0.04)
    together = gone.astype(float).T @ gone / 4_000  # of pairs of units in one example
    assert together[~np.eye(50, dtype=bool)].mean() == pytest.approx(0.04, abs=0.004)
    assert gone.sum(1).var() == pytest.approx(50 * 0.2 * 0.8, rel=0.3)
    np.testing.assert_allclose(dropped(examples, units, (0.2, 0, 50), X).mean(), 1.0, atol=0.02)
    assert (dropped(0 * examples, 0 * units, (0.2, 0, 50), X) == np.float32(1.25)).all()


def test_each_member_drops_units_of_its_own():
    part = network(Mlp((64,), dropout=0.5), members=2)
    drawn = RNG.standard_normal(8, np.float32), RNG.standard_normal(part.dropout, np.float32)
    assert part.dropout == 128
    x = RNG.standard_normal((8, 3)).astype(np.float32)
    both = part.dropping(*drawn)(x)
    other = part.dropping(drawn[0], drawn[1][::-1])(x)
    assert not np.allclose(both, part(x)) and not np.allclose(both, other)
    assert np.array_equal(both, part.dropping(*drawn)(x))


@pytest.mark.parametrize("centre", [3, 10_000])
def test_a_pass_of_training_normalises_by_the_batch_and_moves_the_statistics(centre):
    part = network(Mlp((5,), batch_renorm=True))
    x = RNG.normal(centre, 2, (64, 3)).astype(np.float32)
    trained = part.bound(part.variables, training=True)
    found, before = trained(x), part(x)
    w = part.variables
    z = x.astype(np.float64)
    y = np.maximum((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-3) @ w["dense0.weight"] + w["dense0.bias"], 0)
    expected = (y - y.mean(0)) / np.sqrt(y.var(0) + 1e-3) @ w["dense1.weight"] + w["dense1.bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(trained.moved["dense0.renorm_mean"], 0.01 * x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(trained.moved["dense0.renorm_variance"], 0.99 + 0.01 * x.var(0), rtol=1e-4)
    assert trained.moved["dense0.renorm_passes"] == 1 and not part.moved
    assert not np.allclose(found, before) and np.array_equal(part(x[:1]), before[:1])
    assert set(trained.moved) <= part.frozen


@pytest.mark.parametrize("members", [None, 2])
def test_hidden_weights_are_divided_by_their_largest_singular_value(members):
    part = network(Mlp((5,), spectral_norm=True), members)
    x = RNG.standard_normal((6, 3)).astype(np.float32)
    for _ in range(30):
        part = part.bound(part.variables, training=True)
        found = part(x)
    for i in range(members or 1):
        w = part.variables if members is None else {name: value[i] for name, value in part.variables.items()}
        weight = w["dense0.weight"] / np.linalg.svd(w["dense0.weight"])[1][0]
        hidden = np.maximum(x @ weight + w["dense0.bias"], 0)
        expected = hidden @ w["dense1.weight"] + w["dense1.bias"]
        np.testing.assert_allclose(found if members is None else found[i], expected, atol=1e-4)
        if members is not None:
            np.testing.assert_allclose(part.member(i)(x), expected, atol=1e-4)
    assert part.frozen == {"dense0.spectral"} == set(part.moved)


def test_networks_whose_losses_draw_no_noise_refuse_dropout():
    for agent, action in (
        (DQN(DQNConfig(network=Mlp(dropout=0.1))), Discrete(2)),
        (SAC(SACConfig(network=Mlp(dropout=0.1))), ARM),
    ):
        with pytest.raises(ConfigError, match="draws no noise for the dropout"):
            NumpyEngine(agent, Spaces(VECTOR, action))
    with pytest.raises(ConfigError, match="dropout = 1.0; expected a fraction"):
        Mlp(dropout=1.0)
    with pytest.raises(ConfigError, match="Recurrent: batch_renorm = True"):
        Recurrent(Mlp(batch_renorm=True))


@pytest.mark.parametrize("groups", [(8, 8), ((8,), "88"), ((8,), (4, 3)), ((8,),), ((8,), (9, -1))])
def test_groups_that_do_not_divide_each_hidden_layer_are_refused(groups):
    with pytest.raises(ConfigError, match=r"Mlp: norm_groups = .* expected for each hidden layer \(\) or numbers"):
        Mlp((8, 8), layer_norm=True, norm_groups=groups)
    assert Mlp((8, 8), layer_norm=True, norm_groups=((), (4, 4))).norm_groups == ((), (4, 4))


def test_crossq_renormalises_whatever_spec_it_is_given_and_refuses_dropout():
    config = CrossQConfig(network=ActorCritic(Mlp(), Mlp((8,))))
    assert config.actor_network.batch_renorm and config.critic_network == Mlp((8,), batch_renorm=True)
    with pytest.raises(ConfigError, match="draws none of its noise"):
        CrossQConfig(network=Mlp(dropout=0.1))


def test_the_running_statistics_reach_what_acts_and_checkpoints(tmp_path):
    spec = Mlp((8,))
    with etude.Run(
        "crossq", "Pendulum-v1", network=spec, learning_starts=10, seed=1, engine="torch", run_dir=tmp_path
    ) as run:
        steps = run.train(40).totals["gradient_steps"]
        weights = run.engine.weights()
        assert weights["actor.dense0.renorm_passes"] == steps > 20
        observation = RNG.standard_normal((5, 3)).astype(np.float32)
        acting = NumpyEngine(run.engine.layout.agent, run.engine.spaces)
        acting.load(weights)
        expected = run.engine.act(observation).mode()
        np.testing.assert_allclose(acting.act(observation).mode(), expected, atol=1e-5)
    with etude.load(tmp_path) as again:
        for name, value in again.engine.weights().items():
            assert np.array_equal(value, weights[name]), name
