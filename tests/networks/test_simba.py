"""Networks of residual blocks."""

import numpy as np
import pytest
from gymnasium.spaces import Box

import etude
from etude import ActorCritic, Mlp
from etude.base.errors import ConfigError
from etude.networks import RunningScale, SimBa, SimBaV2
from etude.networks.maker import Maker

VECTOR = Box(-1, 1, (3,), np.float32)


def test_a_block_adds_to_the_stream_and_members_are_networks_of_their_own():
    part = Maker(np.random.default_rng(1), None)(SimBa(2, 8, 3), VECTOR, 2, members=2)
    assert part.variables["block1.dense0.weight"].shape == (2, 8, 24)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    for i in (0, 1):
        np.testing.assert_allclose(part.member(i)(x), part(x)[i], atol=1e-5)
    without = {name: 0 * value if ".dense1." in name else value for name, value in part.variables.items()}
    stream = x @ part.variables["dense0.weight"] + part.variables["dense0.bias"]
    normed = (stream - stream.mean(-1, keepdims=True)) / np.sqrt(stream.var(-1, keepdims=True) + 1e-6)
    expected = normed @ part.variables["dense1.weight"] + part.variables["dense1.bias"]
    np.testing.assert_allclose(part.bound(without)(x), expected, atol=1e-5)


@pytest.mark.parametrize("field", [{"width": 0}, {"blocks": -1}, {"activation": "sin"}])
def test_what_is_no_network_is_refused(field):
    with pytest.raises(ConfigError, match=f"SimBa: {next(iter(field))}"):
        SimBa(**field)


def test_a_run_learns_with_it_and_goes_on_from_a_checkpoint(tmp_path):
    network = ActorCritic(SimBa(1, 8), SimBa(1, 16))
    more = {"network": network, "normalize_observation": True, "engine": "torch", "seed": 1}
    with etude.Run("ppo", "CartPole-v1", run_dir=tmp_path, rollout_length=16, environments=2, **more) as run:
        run.train(64)
        observation = np.ones((1, 4), np.float32)
        expected = run.engine.act(observation).mode()
    with etude.load(tmp_path) as again:
        assert again.agent.config.network == network
        assert np.array_equal(again.engine.act(observation).mode(), expected)
    # evolution has no structure to change, and leaves an actor beside it alone
    assert not etude.tuning.evolution.structure.networks_in(ActorCritic(Mlp(), SimBa()))


def test_on_the_sphere_a_block_whose_share_is_zero_leaves_the_stream_and_members_are_networks_of_their_own():
    part = Maker(np.random.default_rng(1), None)(SimBaV2(2, 8, 3, shift=2.0), VECTOR, 2, members=2)
    assert sorted(part.projected) == sorted(name for name in part.variables if name.endswith("weight"))
    for name in part.projected:
        np.testing.assert_allclose(np.linalg.norm(part.variables[name], axis=-2), 1.0, rtol=1e-5)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    for i in (0, 1):
        np.testing.assert_allclose(part.member(i)(x), part(x)[i], atol=1e-6)
    without = {name: 0 * value if name.endswith("dense1.scale") and "block" in name else value
               for name, value in part.variables.items()}  # fmt: skip
    stream = np.append(x, np.full((5, 1), 2.0), 1)
    stream = stream @ part.variables["dense0.weight"] * part.variables["dense0.scale"]  # of any norm before
    stream = stream / np.linalg.norm(stream, axis=-1, keepdims=True)
    hidden = stream @ part.variables["dense1.weight"] * part.variables["dense1.scale"]
    np.testing.assert_allclose(part.bound(without)(x), hidden @ part.variables["dense2.weight"], atol=1e-6)
    with pytest.raises(ConfigError, match="SimBaV2: shift"):
        SimBaV2(shift=0.0)


@pytest.mark.parametrize("optimizer", [etude.optimizers.Adam(), etude.optimizers.AdamW()])
def test_gradient_steps_keep_columns_on_the_sphere_and_target_copies_follow(optimizer):
    small = ActorCritic(SimBaV2(1, 8), SimBaV2(1, 16))
    more = {"learning_starts": 20, "batch_size": 8, "learning_rate": 0.01, "optimizer": optimizer, "engine": "torch"}
    with etude.Run("categorical_sac", "Pendulum-v1", network=small, atoms=11, seed=1, **more) as run:
        first = run.engine.weights()
        run.train(60)
        for name, x in run.engine.weights().items():
            if name.startswith(("actor.", "critic.")) and name.endswith(".weight"):
                assert not np.allclose(x, first[name], atol=1e-3)
                np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5)


def test_rewards_are_divided_by_more_than_the_deviation_where_the_largest_return_would_be_beyond_the_bound():
    scale, free = RunningScale(1, bound=2.0), RunningScale(1)
    for reward in (-8.0, -9.0, -8.5):
        for each in (scale, free):
            each.update(np.array([[reward]]), np.array([[False]]), np.array([0]), 0.5)
    assert scale.largest == 15.0 and scale.factor == 2.0 / 15.0 < free.factor
    again = RunningScale(1, bound=2.0)
    again.restore(scale.state())
    assert again.factor == scale.factor
    again.restore({name: x for name, x in scale.state().items() if name != "largest"})  # as saved without it
    assert again.factor == free.factor
