"""Policies from the checkpoints of other runs, which act in a run and do not learn there."""

import copy

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, at_random, moved, pair
from several_worlds import Meeting, Mixed

from etude import Mlp
from etude.algorithms import DQN, PPO, DQNConfig, PPOConfig
from etude.base.errors import CheckpointError, ConfigError
from etude.multi_agent import Frozen
from etude.run import from_state


def acts(run, observation):
    return run.actor().act(observation)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_policy_from_a_run_of_one_agent_acts_as_it_did(normalize, tmp_path):
    config = PPOConfig(
        network=Mlp((4,)), rollout_length=16, minibatch_size=32, epochs=1, normalize_observation=normalize
    )
    with pair("ppo", "CartPole-v1", config=config, run_dir=tmp_path / "run") as run:
        run.train(64)
        seen = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
        expected = acts(run, seen)
    world = "etude.examples.cart_pole:CartPoles"
    opponents = {"pole_0": DQN(DQN_TINY), "frozen": Frozen(tmp_path / "run")}
    with pair(opponents, world, env_args={"count": 2}, policies={"pole_0": "pole_0", "pole_1": "frozen"}) as run:
        assert moved(run, 40) == {"pole_0"}
        both = {"agents": {"pole_0": seen, "pole_1": seen}, "status": np.ones((3, 2), np.int8)}
        (found,) = acts(run, both)["frozen"]
        np.testing.assert_array_equal(found.logits, expected.logits)
        state = copy.deepcopy(run.state())
    for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with from_state(state) as again:  # the run holds what it needs of the frozen policy
        (found,) = acts(again, both)["frozen"]
        np.testing.assert_array_equal(found.logits, expected.logits)
        again.train(20)


@pytest.mark.parametrize("shared", [False, True])
def test_a_policy_from_a_run_of_several_agents_acts_as_it_did(shared, tmp_path):
    config = DQNConfig(**{**vars(DQN_TINY), "normalize_observation": True})
    policies = {"ann": "left", "bob": "left" if shared else "right"}
    with pair("dqn", Meeting, config=config, policies=policies) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
        seen = {"agents": {"ann": np.ones((2, 1), np.float32), "bob": -np.ones((2, 1), np.float32)}}
        seen["status"] = np.ones((2, 2), np.int8)
        _, expected = acts(run, seen)
    frozen = Frozen(tmp_path / "run.etude", policy="left" if shared else "right")
    with pair({"ann": PPO(PPO_TINY), "bob": frozen}, Meeting) as run:
        (found,) = acts(run, seen)["bob"]
        np.testing.assert_array_equal(found, expected)
        assert moved(run, 40) == {"ann"}


def test_a_policy_from_a_run_of_several_algorithms_acts_as_it_did(tmp_path):
    with pair({"ann": DQN(DQN_TINY), "bob": at_random}, Meeting) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
        expected = {name: value for name, value in run.engine.weights().items() if ".q." in name}
    with pair({"ann": PPO(PPO_TINY), "bob": Frozen(tmp_path / "run.etude", "ann")}, Meeting) as run:
        weights = run.engine.weights()
        for name, value in expected.items():
            np.testing.assert_array_equal(weights[name.replace("ann", "bob", 1)], value)


@pytest.fixture
def saved(tmp_path):
    with pair("dqn", Meeting, config=DQN_TINY) as run:
        run.train(4)
        run.save(tmp_path / "run.etude")
    return tmp_path / "run.etude"


def test_a_frozen_policy_that_does_not_fit_is_refused(saved):
    with pytest.raises(ConfigError, match="expected one of the checkpoint's policies, 'ann', 'bob'"):
        pair({"ann": "ppo", "bob": Frozen(saved)}, Meeting)
    with pytest.raises(ConfigError, match="'switch' cannot act for switch: .* trained on other observations or"):
        pair({"arm": "ppo", "switch": Frozen(saved, "ann")}, Mixed)
    with pytest.raises(CheckpointError, match="There is no run at"):
        pair({"ann": "ppo", "bob": Frozen(saved.parent / "gone")}, Meeting)
    with pytest.raises(ConfigError, match="No policy learns"):
        pair({"ann": Frozen(saved, "ann"), "bob": at_random}, Meeting)
