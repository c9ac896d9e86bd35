"""Networks of residual blocks."""

import numpy as np
import pytest
from gymnasium.spaces import Box

import etude
from etude import ActorCritic, Mlp
from etude.base.errors import ConfigError
from etude.networks import SimBa
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
