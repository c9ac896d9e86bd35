"""Runs with several agents: which policy drives which, saved and gone on with, and what is refused."""

from functools import partial

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY
from several_worlds import Coming, Counting, Meeting, Mixed

import etude
from etude import MADDPGConfig, Mlp, Policies, Run
from etude.errors import ConfigError, SpaceError
from etude.several import identified


def tiny(algorithm, env, policies=None, **more):
    config = {"dqn": DQN_TINY, "ppo": PPO_TINY, "maddpg": MADDPGConfig(network=Mlp((4,)), batch_size=8, warmup=16)}
    settings = {"config": config.get(algorithm), "engine": "torch", "environments": 2, "seed": 1, **more}
    return Run(algorithm, env, policies=policies, **settings)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (None, {"ann": "ann", "bob": "bob"}),
        ("shared", {"ann": "shared", "bob": "shared"}),
        ({"ann": "x", "bob": "y"}, {"ann": "x", "bob": "y"}),
        (lambda agent: agent[0], {"ann": "a", "bob": "b"}),
    ],
)
def test_which_policy_drives_which_agent_is_told_and_kept(policies, expected, tmp_path):
    with tiny("dqn", Meeting, policies) as run:
        assert run.description()["policies"] == {"of": expected, "identity": False}
        assert {name.split(".")[0] for name in run.engine.weights()} == set(expected.values())
        run.train(30)
        run.save(tmp_path / "run.etude")
        weights = run.engine.weights()
    with etude.load(tmp_path / "run.etude", env=Meeting) as again:
        assert again.description()["policies"]["of"] == expected
        assert all(np.array_equal(value, again.engine.weights()[name]) for name, value in weights.items())
        again.train(10)


def test_an_agent_of_a_shared_policy_is_told_which_one_it_is(tmp_path):
    with tiny("dqn", Meeting, Policies("shared", identity=True)) as run:
        assert run.engine.weights()["shared.q.dense0.weight"].shape[0] == 1 + 2
        run.train(30)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", env=Meeting) as again:
        assert again.description()["policies"]["identity"]
    seen = identified({"action_mask": np.ones((3, 2), np.int8), "observation": np.ones((3, 5), np.float32)}, 1)
    assert seen["agent"].tolist() == [1, 1, 1]
    assert identified(np.ones((2, 4)), 0)["agent"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("algorithm", "env", "policies", "message"),
    [
        ("dqn", "CartPole-v1", "each", "this environment has one agent"),
        ("maddpg", "CartPole-v1", None, "MADDPG is for several agents; this environment has one. Use .*dqn"),
        ("dqn", Coming, "shared", "early and .* share the policy 'shared' and have different spaces"),
        ("dqn", Meeting, {"ann": "x"}, "policies gives None for the agent 'bob'"),
        ("dqn", Meeting, {"ann": "x", "bob": "x", "eve": "x"}, "policies names eve; the agents .* are ann, bob"),
        ("dqn", Meeting, "team", "policies gives None for the agent 'ann'; expected .*'each', 'shared', or a dict"),
        ("dqn", Meeting, lambda agent: f"a.{agent}", "without a dot"),
        ("dqn", Meeting, {"ann": "config", "bob": "y"}, "cannot be called 'config' here"),
        ("dqn", Mixed, None, "DQN needs Discrete actions"),
        ("maddpg", Counting, None, "MADDPG judges what all agents do at once; in this environment they take turns"),
        ("maddpg", Meeting, "shared", "MADDPG trains a policy for each agent"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(algorithm, env, policies, message):
    with pytest.raises((ConfigError, SpaceError), match=message):
        tiny(algorithm, env, policies, environments=1)


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", Mixed), ("dqn", Counting), ("maddpg", Coming)])
def test_workers_collect_the_same_steps_as_one_process(algorithm, env):
    found = []
    for workers in (0, 2):
        with tiny(algorithm, partial(env), workers=workers) as run:
            run.train(80)
            found.append(run.engine.weights())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], name)


def test_rewards_of_several_agents_are_scaled_by_one_factor():
    with tiny("ppo", Coming, config=etude.PPOConfig(network=Mlp((4,)), rollout=16, normalize_reward=True)) as run:
        run.train(64)
        assert 0 < run.learner.scale.factor < 10
