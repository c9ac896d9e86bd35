"""Runs with several agents: which policy drives which, what each earns, saved and gone on with, and what is refused."""

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, run_given
from several_worlds import Coming, Counting, Duel, Leaving, Meeting, Mixed, Pausing

import etude
from etude import Mlp, Policies
from etude.algorithms import MADDPGConfig
from etude.base.data import return_text
from etude.base.errors import CheckpointError, ConfigError, SpaceError
from etude.base.events import Collected, Evaluated
from etude.multi_agent.joint import joined_actions
from etude.multi_agent.policies import identified
from etude.run import from_state


def tiny(algorithm, env, policies=None, **more):
    config = {
        "dqn": DQN_TINY,
        "ppo": PPO_TINY,
        "maddpg": MADDPGConfig(network=Mlp((4,)), batch_size=8, learning_starts=16),
    }
    settings = {"config": config.get(algorithm), "engine": "torch", "environments": 2, "seed": 1, **more}
    return run_given(algorithm, env, policies=policies, **settings)


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
        (
            "maddpg",
            Counting,
            None,
            "MADDPG.s critics take the simultaneous actions of all agents; in this environment they take turns",
        ),
        ("qmix", Counting, None, "QMIX and VDN value the simultaneous actions of all agents; .* take turns"),
        ("vdn", Mixed, None, "VDN needs Discrete actions"),
        ("matd3", Meeting, "shared", "MATD3 trains a policy for each agent"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(algorithm, env, policies, message):
    with pytest.raises((ConfigError, SpaceError), match=message):
        tiny(algorithm, env, policies, environments=1)


@pytest.mark.parametrize(
    ("algorithm", "env"), [("ppo", Mixed), ("dqn", Counting), ("maddpg", Coming), ("ppo", Pausing)]
)
@pytest.mark.long_but("ppo-Mixed", "dqn-Counting", "ppo-Pausing")
def test_workers_collect_the_same_steps_as_one_process(algorithm, env):
    found = []
    for workers in (0, 2):
        with tiny(algorithm, partial(env), workers=workers) as run:
            run.train(80)
            found.append(run.engine.weights())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], name)


SCALED = {"network": Mlp((4,)), "rollout_length": 7, "minibatch_size": 8, "epochs": 1, "gamma": 0.9}


def discounted_returns(rows, agent, gamma):
    """Those of one agent in one environment, over its own turns. rows: (status, reward, whether the episode ended,
    status that followed) in a row."""
    found, running, earned = [], 0.0, None
    for status, reward, over, following in rows:
        if status[agent] == 1:
            earned = 0.0
        if earned is None:
            continue
        earned += reward[agent]
        if over or following[agent] in (1, 2, 3):
            running, earned = gamma * running + earned, None
            found.append(running)
        if over or following[agent] in (2, 3):
            running = 0.0
    return found


@pytest.mark.parametrize(
    ("world", "policies"),
    [
        (Coming, "each"),
        (Counting, "each"),
        (Counting, "shared"),
        (Duel, "each"),
        (Duel, "shared"),
        (partial(Leaving, steps=3, truncated=True), "shared"),
    ],
)
def test_rewards_of_each_policy_are_divided_by_the_deviation_of_its_own_returns_over_its_own_turns(world, policies):
    config = etude.algorithms.PPOConfig(**SCALED)
    rows = {0: [], 1: []}
    with tiny("ppo", world, policies, config=config) as run:
        for event in run.steps(140):
            for steps in event.steps if isinstance(event, Collected) else ():
                status, following = steps.observation["status"], steps.next_observations()["status"]
                for t, n in np.ndindex(*steps.shape):
                    over = steps.terminated[t, n] or steps.truncated[t, n]
                    rows[n].append((status[t, n].copy(), steps.reward[t, n].copy(), over, following[t, n]))
        agents = sorted(run.engine.spaces.agents)
        driven = run.agent.policies.driven(run.engine.spaces.agents)
        factor = dict(zip(agents, run.learner.scale.factor, strict=True))
        seen = {policy: moments.seen for policy, moments in run.learner.scale.moments.items()}
        assert run.learner.replay.view.reward_scale == run.learner.scale.factor
    for policy, names in driven.items():
        returns = [r for name in names for n in rows for r in discounted_returns(rows[n], agents.index(name), 0.9)]
        assert seen[policy] == len(returns) > 20
        expected = 1 / np.sqrt(np.var(returns) + 1e-8)
        assert [factor[name] for name in names] == pytest.approx([expected] * len(names), rel=1e-6)


def test_the_scales_of_rewards_go_on_where_a_run_was_saved_between_two_turns():
    config = etude.algorithms.PPOConfig(**SCALED)
    with tiny("ppo", Counting, config=config) as run:
        run.train(56 + 2 * 3)  # three turns of an episode, and of a rollout
        state = copy.deepcopy(run.state())
        run.train(70)
        expected = run.learner.scale.state()
    assert state["scale"]["waiting"].any()
    with from_state(state, Counting) as again:
        again.train(70)
        found = again.learner.scale.state()
    assert found["moments"] == expected["moments"]
    np.testing.assert_array_equal(found["returns"], expected["returns"])
    np.testing.assert_array_equal(found["waiting"], expected["waiting"])


def test_a_checkpoint_with_one_scale_for_all_agents_goes_on_with_one_for_each_policy_and_says_so():
    config = etude.algorithms.PPOConfig(**SCALED)
    with tiny("ppo", Duel, config=config) as run:
        run.train(70)
        state = copy.deepcopy(run.state())
    state["scale"] = {"returns": np.zeros(2), "moments": {"seen": 70.0, "mean": 0.0, "variance": 0.0}}
    with pytest.warns(UserWarning, match="rewards of all agents by the deviation of their mean.*each policy's own"):
        again = from_state(state, Duel)
    with again:
        again.train(70)
        assert all(0.1 < factor < 1 for factor in again.learner.scale.factor)
    for wrong in ({**state["scale"], "returns": np.zeros((2, 2))}, {**state["scale"], "waiting": np.zeros(2, bool)}):
        with pytest.raises(CheckpointError, match="scale"):
            from_state({**state, "scale": wrong}, Duel)


def test_an_agent_that_joins_within_the_steps_of_a_transition_is_there_at_its_end():
    config = MADDPGConfig(network=Mlp((4,)), batch_size=8, learning_starts=16, n_step=3)
    with tiny("maddpg", Coming, config=config) as run:
        run.train(90)
        batch = run.learner.replay.sample(1, 300)
    early, joins, late = 0, 1, 2
    before = (batch.observation["status"][0, :, joins] == 0) & (batch.extras["active"][0, :, late] > 0)
    assert before.sum() > 30  # in the first three of nine steps
    assert (batch.next_observation["status"][0, before, joins] == 1).all()
    assert (batch.next_observation["agents"]["joins"][0, before] == 1).all()
    assert (batch.next_observation["status"][0, before, early] != 1).all()  # it ends after two


def ends(run, steps):
    """The episodes that ended while it trained."""
    return [end for event in run.steps(steps) if isinstance(event, Collected) for end in event.episodes]


@pytest.mark.long_but("0-ppo", "2-dqn")
@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "maddpg"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_return_of_each_agent_is_told_where_the_sum_of_them_is_always_zero(algorithm, workers):
    with tiny(algorithm, partial(Duel), workers=workers) as run:
        found = ends(run, 80)
    assert len(found) >= 12
    assert {end.total for end in found} == {0.0}
    for end in found:
        even, odd = end.total_by_agent.pop("even"), end.total_by_agent.pop("odd")
        assert even == -odd
        assert even in range(-10, 6, 3)
        assert end.total_by_agent == {}


@pytest.mark.parametrize(
    ("env", "each"), [(Coming, {"early": 2.0, "joins": 12.0, "late": 9.0}), (Counting, {"first": 6.0, "second": 6.0})]
)
def test_agents_that_come_and_go_and_that_take_turns_are_told_apart(env, each):
    with tiny("dqn", env) as run:
        episodes, found = ends(run, 60), run.evaluate(episodes=3)
    assert [end.total_by_agent for end in episodes] == [each] * len(episodes) != []
    assert found.mean_by_agent == each
    assert found.returns_by_agent == {name: (one,) * 3 for name, one in each.items()}
    assert found.mean == sum(each.values())


def test_an_evaluation_tells_what_each_agent_earned():
    with tiny("dqn", Duel) as run:
        found = run.evaluate(episodes=4)
        (event,) = (e for e in run.steps(20, evaluate_every=20, evaluate_episodes=4) if isinstance(e, Evaluated))
    even, odd = (found.returns_by_agent[name] for name in ("even", "odd"))
    assert even == tuple(-number for number in odd)
    mean, spread = (return_text(each(even)) for each in (np.mean, np.std))
    assert f"; by agent: even {mean} ± {spread}, odd {return_text(-np.mean(even))} ±" in str(found)
    assert event.mean_by_agent["even"] == -event.mean_by_agent["odd"] == np.mean(event.returns_by_agent["even"])


def test_one_agent_has_no_returns_by_agent():
    with tiny("dqn", "CartPole-v1") as run:
        assert {end.total_by_agent for end in ends(run, 80)} == {None}
        assert run.evaluate(episodes=1).returns_by_agent == {}
        assert "total_by_agent" not in run.state()["rollout"]["environments"]["0"]


@pytest.mark.parametrize("more", [{}, {"workers": 2, "overlap": True}])
def test_what_each_agent_has_earned_in_an_open_episode_is_kept(more):
    with tiny("ppo", partial(Duel), **more) as run:
        ends(run, 32)  # into the fourth episode of both environments
        state = copy.deepcopy(run.state())
        expected = ends(run, 64)
    assert np.abs(state["rollout"]["environments"]["0"]["total_by_agent"]).sum() > 0
    with from_state(state, partial(Duel)) as again:
        assert ends(again, 64) == expected


def test_a_checkpoint_that_does_not_hold_what_each_agent_has_earned_is_gone_on_with():
    with tiny("dqn", Duel) as run:
        ends(run, 36)
        state = copy.deepcopy(run.state())
        expected = ends(run, 40)
    for column in state["rollout"]["environments"].values():
        del column["total_by_agent"]
    with from_state(state, Duel) as again:
        saved = copy.deepcopy(again.state())
        found = ends(again, 40)
    assert [end.total_by_agent for end in found[:2]] == [None, None]
    assert [*(end._replace(total_by_agent=None) for end in expected[:2]), *expected[2:]] == found
    with from_state(saved, Duel) as again:  # what is not known is not known after a second save either
        assert ends(again, 40) == found


def test_a_checkpoint_from_between_two_episodes_lacks_nothing_of_what_each_agent_has_earned():
    with tiny("dqn", Duel) as run:
        ends(run, 40)  # four episodes of both environments
        state = copy.deepcopy(run.state())
        expected = ends(run, 40)
    for column in state["rollout"]["environments"].values():
        assert column["length"] == 0
        del column["total_by_agent"]
    with from_state(state, Duel) as again:
        assert ends(again, 40) == expected


def test_choices_of_several_parts_stand_beside_single_ones_in_joined_actions():
    several, single = gym.spaces.MultiDiscrete([[2, 3], [4, 5]]), gym.spaces.Discrete(6)
    assert joined_actions([several, single]) == gym.spaces.MultiDiscrete([2, 3, 4, 5, 6])
