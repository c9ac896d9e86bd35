"""PettingZoo parallel environments: joint observations and actions, agents that end early, and scores."""

import importlib

import cloudpickle
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from worlds import Counter, Relay

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault, SpaceError
from etude.base.seeding import episode_seed
from etude.solo.environments import UserEnvironments

EARLY = {"b": (2, "terminated"), "a": (4, "terminated")}


def environments(make, columns=(0,), reward_done=None):
    return UserEnvironments.of(make, 5, reward_done)(np.array(columns))


def relay(**ends):
    return lambda: Relay(ends or None)


def none(n=1):
    return np.zeros((n, 2), np.int64)


def test_observations_are_a_tuple_in_the_order_of_possible_agents_beside_who_has_ended():
    made = environments(relay(), (0, 1))
    space = Box(-1, 2.0**31, (3,), np.float32)
    assert made.spaces.observation == Dict(
        {"agents": Tuple([space, space]), "terminated": MultiBinary(2), "truncated": MultiBinary(2)}
    )
    observation = made.reset()
    assert [agent[:, 1].tolist() for agent in observation["agents"]] == [[0, 0], [1, 1]]
    assert observation["terminated"].tolist() == observation["truncated"].tolist() == [[0, 0], [0, 0]]
    assert list(UserEnvironments.of(relay(), 0).describe().agents) == ["b", "a"]


def test_discrete_agents_act_together_as_one_multi_discrete():
    env = Relay(actions={"b": Discrete(3, start=5), "a": Discrete(2)})
    made = environments(env)
    assert made.spaces.action == MultiDiscrete([3, 2])
    made.reset()
    made.step(np.array([[2, 1]]))
    assert env.seen == [{"b": 7, "a": 1}]
    assert all(type(action) is int for action in env.seen[0].values())


BOXES = {"b": Box(0, 4, (2,), np.float32), "a": Box(-1, 3, (1, 1), np.float64)}


def test_box_agents_act_together_as_one_flat_box():
    env = Relay(actions=BOXES)
    made = environments(env)
    assert made.spaces.action.shape == (3,)
    made.reset()
    made.step(np.array([[-1, 3, 0.5]], np.float32))
    b, a = env.seen[0]["b"], env.seen[0]["a"]
    assert (b.dtype, b.tolist(), a.dtype, a.tolist()) == (np.float32, [0, 3], np.float64, [[0.5]])


def test_actions_of_several_kinds_are_refused_with_the_reason():
    with pytest.raises(SpaceError, match=r"all be Discrete or all be Box; got b: Discrete\(2\), a: Box"):
        environments(lambda: Relay(actions={"b": Discrete(2), "a": BOXES["a"]}))


def test_an_environment_without_agents_is_refused():
    with pytest.raises(SpaceError, match="no possible_agents"):
        environments(lambda: Relay({}, {"x": Discrete(2)}))


def test_each_agent_has_its_reward_and_the_score_is_their_sum():
    made = environments(relay(), (0, 1))
    made.reset()
    _, reward, *_ = made.step(none(2))
    assert (reward.dtype, reward.tolist()) == (np.float32, [[1, 10]] * 2)
    assert made.reward_shape == (2,)
    assert made.scores.tolist() == [11, 11]


def test_an_agent_that_ends_early_keeps_its_last_observation_and_earns_nothing_more():
    made = environments(relay(**EARLY))
    made.reset()
    steps = [made.step(none()) for _ in range(4)]  # Relay itself refuses actions of agents that have ended
    last = steps[-1][4][0]
    seen = [step[0] for step in steps[:3]] + [trees.map(lambda leaf: leaf[None], last)]
    assert [step["agents"][0][0, 2] for step in seen] == [1, 2, 2, 2]
    assert [step["agents"][1][0, 2] for step in seen] == [1, 2, 3, 4]
    assert [step["terminated"][0].tolist() for step in seen] == [[0, 0], [1, 0], [1, 0], [1, 1]]
    assert [step[1][0].tolist() for step in steps] == [[1, 10], [1, 10], [0, 10], [0, 10]]
    assert [bool(step[2][0]) for step in steps] == [False, False, False, True]
    after = steps[-1][0]
    assert after["terminated"].tolist() == [[0, 0]]
    assert after["agents"][0][0].tolist() == [np.float32(episode_seed(5, 0, 1)), 0, 0]


def test_an_agent_that_has_ended_stays_so_where_the_environment_goes_on_showing_it():
    class Showing(Relay):
        def _observe(self, names):
            return super()._observe(self.possible_agents)

    made = environments(lambda: Showing(EARLY))
    made.reset()
    for _ in range(3):
        observation, reward, *_ = made.step(none())
    assert observation["agents"][0][0, 2] == 2
    assert (observation["terminated"].tolist(), reward.tolist()) == ([[1, 0]], [[0, 10]])


def test_a_last_observation_survives_the_environment_writing_to_it():
    class Reusing(Relay):
        array = np.zeros(3)

        def _observe(self, names):
            self.array[:] = self.t
            return dict.fromkeys(names, self.array)

    made = environments(lambda: Reusing(EARLY))
    made.reset()
    for _ in range(3):
        observation, *_ = made.step(none())
    assert observation["agents"][0][0].tolist() == [2, 2, 2]
    assert observation["agents"][1][0].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("b", "a", "terminated", "flags"),
    [
        ((2, "terminated"), (2, "terminated"), True, ([1, 1], [0, 0])),
        ((2, "truncated"), (2, "truncated"), False, ([0, 0], [1, 1])),
        ((2, "terminated"), (2, "truncated"), False, ([1, 0], [0, 1])),
        ((1, "terminated"), (2, "truncated"), False, ([1, 0], [0, 1])),
        ((1, "truncated"), (2, "terminated"), True, ([0, 1], [1, 0])),
    ],
)
def test_an_episode_ends_with_its_last_agents_and_as_they_end(b, a, terminated, flags):
    made = environments(relay(b=b, a=a))
    made.reset()
    *_, final = made.step(none())
    assert final == {}
    *_, ended, cut, final = made.step(none())
    assert (ended.tolist(), cut.tolist()) == ([terminated], [not terminated])
    assert (final[0]["terminated"].tolist(), final[0]["truncated"].tolist()) == flags


def test_a_function_of_the_user_scores_episodes_and_ends_them_as_terminated():
    calls = []

    def reward_done(r, d):
        calls.append((r.tolist(), d.tolist()))
        return r.max() - 1, len(calls) == 3

    made = environments(relay(b=(2, "truncated"), a=(9, "terminated")), reward_done=reward_done)
    made.reset()
    made.step(none())
    assert made.scores.tolist() == [9]
    _, reward, *_ = made.step(none())
    assert reward.tolist() == [[1, 10]]
    _, _, terminated, truncated, final = made.step(none())
    assert (terminated.tolist(), truncated.tolist()) == ([True], [False])
    assert final[0]["terminated"].tolist() == [0, 1]
    assert final[0]["truncated"].tolist() == [1, 0]
    assert calls == [([1, 10], [False, False]), ([1, 10], [False, False]), ([0, 10], [False, False])]


def test_time_that_ran_out_stays_truncation_where_the_function_asks_for_all_dones():
    made = environments(relay(b=(2, "truncated"), a=(2, "truncated")), reward_done=lambda r, d: (r.sum(), d.all()))
    made.reset()
    made.step(none())
    _, _, terminated, truncated, _ = made.step(none())
    assert (terminated.tolist(), truncated.tolist()) == ([False], [True])


def test_all_dones_end_what_terminated():
    made = environments(relay(), reward_done=lambda r, d: (r.sum(), d.all()))
    made.reset()
    flags = [made.step(none())[2][0] for _ in range(3)]
    assert flags == [False, False, True]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda r, d: (r, d.all()), r"reward of shape \(2,\) .* expected one number and one bool for all agents"),
        (lambda r, d: (r.sum(), d), r"done of shape \(2,\)"),
        (lambda r, d: r.sum(), "expected \\(reward, done\\)"),
        (lambda r, d: (np.nan, False), "the reward of all agents together is nan"),
    ],
)
def test_a_function_that_returns_something_else_is_told_what_is_expected(returned, message):
    made = environments(relay(), reward_done=returned)
    made.reset()
    with pytest.raises(EnvironmentFault, match=f"environment 0, episode 0, step 1: .*{message}"):
        made.step(none())


def test_a_function_for_several_agents_needs_several_agents():
    with pytest.raises(ConfigError, match="Counter has one agent"):
        environments(Counter(), reward_done=lambda r, d: (0, False))


class Broken(Relay):
    """Returns from step what `change` makes of it."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def step(self, actions):
        return self._change(super().step(actions))


def without(position, name):
    def change(result):
        result[position].pop(name)
        return result

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(0, "a"), "no observation for agent 'a', which still plays; got those of \\['b'\\]"),
        (without(1, "b"), "no reward for agent 'b'"),
        (without(2, "a"), "no termination for agent 'a'"),
        (lambda result: (*result[:2], {"b": None, "a": False}, *result[3:]), "the termination of agent 'b' is None"),
        (lambda result: (*result[:3], {"b": False, "a": "no"}, result[4]), "the truncation of agent 'a' is 'no'"),
        (lambda result: result[:4], "step returned a tuple of 4; expected \\(observations, rewards"),
        (lambda result: (result[0], {"b": np.nan, "a": 0}, *result[2:]), "the reward of agent 'b' is nan"),
        (
            lambda result: ({"b": np.zeros(4), "a": np.zeros(3)}, *result[1:]),
            "observation 'agents.0' has shape \\(4,\\)",
        ),
    ],
)
def test_a_broken_step_names_environment_episode_step_and_agent(change, message):
    made = environments(lambda: Broken(change), (3,))
    made.reset()
    with pytest.raises(EnvironmentFault, match=f"environment 3, episode 0, step 1: .*{message}"):
        made.step(none())


def test_a_broken_reset_says_what_to_return():
    class Bare(Relay):
        def reset(self, seed=None, options=None):
            return super().reset(seed)[0]

    with pytest.raises(EnvironmentFault, match="reset returned a dict; expected \\(observations, infos\\)"):
        environments(Bare)


def test_episodes_start_from_their_seeds_and_do_not_depend_on_which_environments_share_an_object():
    together = environments(relay(**EARLY), range(3))
    apart = [environments(relay(**EARLY), columns) for columns in ((0, 2), (1,))]
    seen = [together.reset(), *(together.step(none(3))[0] for _ in range(9))]
    first = [apart[0].reset(), *(apart[0].step(none(2))[0] for _ in range(9))]
    for whole, part in zip(seen, first, strict=True):
        assert all(np.array_equal(a[[0, 2]], b) for a, b in zip(trees.leaves(whole), trees.leaves(part), strict=True))
    seeds = [seen[0]["agents"][0][i, 0] for i in range(3)]
    assert seeds == [np.float32(episode_seed(5, i, 0)) for i in range(3)]


@pytest.mark.parametrize(
    "make",
    [relay(**EARLY), "mpe2.simple_speaker_listener_v4:parallel_env", "mpe2.simple_spread_v3:parallel_env"],
    ids=["relay", "speaker", "spread"],
)
def test_open_episodes_are_replayed_bit_for_bit(make):
    one, other = environments(make, (0, 1)), environments(make, (0, 1))
    space, rng = one.spaces.action, np.random.default_rng(0)
    actions = rng.integers(0, space.nvec, (70, 2, len(space.nvec)))
    one.reset()
    for action in actions[:39]:
        one.step(action)
    observation, differs = other.restore(cloudpickle.loads(cloudpickle.dumps(one.state())))
    assert differs == []
    for action in actions[39:]:
        a, b = one.step(action), other.step(action)
        for x, y in zip(trees.leaves(a[:4]), trees.leaves(b[:4]), strict=True):
            assert np.array_equal(x, y)
        assert np.array_equal(one.scores, other.scores)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", ["simple_speaker_listener_v4", "simple_adversary_v3", "simple_tag_v3"])
def test_tasks_of_mpe_work_as_they_are(name, continuous):
    module = importlib.import_module(f"mpe2.{name}")
    env = module.parallel_env(continuous_actions=continuous)
    given = UserEnvironments.of(env, 1)
    assert list(given.describe().agents) == env.possible_agents
    made = given([0, 1])  # the second is a copy of the instance
    space, rng = made.spaces.action, np.random.default_rng(0)
    observation, ends = made.reset(), 0
    for _ in range(60):
        action = (
            np.array([space.sample() for _ in range(2)])
            if continuous
            else rng.integers(0, space.nvec, (2, len(space.nvec)))
        )
        observation, reward, terminated, truncated, final = made.step(action)
        assert reward.shape == (2, len(env.possible_agents))
        assert np.allclose(made.scores, reward.sum(1), rtol=1e-4, atol=1e-4)
        ends += int(truncated.sum())
        assert not terminated.any()
        assert [agent.shape[1] for agent in observation["agents"]] == [
            env.observation_space(agent).shape[0] for agent in env.possible_agents
        ]
    assert ends == 4  # 25 steps an episode


def test_agents_in_turns_are_refused_with_what_to_use():
    from mpe2 import simple_spread_v3

    with pytest.raises(ConfigError, match="in turns; expected a parallel environment: its parallel_env()"):
        UserEnvironments.of(simple_spread_v3.env(), 0)
