"""What a user's agent may hold as its environment, and which of it each environment of a run gets."""

import threading

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from worlds import Counter, Old, Relay, Scripted

from etude.base.errors import ConfigError, MissingExtra, SpaceError
from etude.base.seeding import episode_seed
from etude.solo.environments import UserEnvironments


class Recorded(Counter):
    """Keeps what was done to it."""

    def __init__(self, number=0):
        super().__init__(number)
        self.seeds, self.closed = [], 0

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return super().reset()

    def close(self):
        self.closed += 1


class Locked(Counter):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class PicklesOnly(Counter):
    def __deepcopy__(self, memo):
        raise TypeError("not like this")


def numbers(given, columns):
    return UserEnvironments.of(given, 0)(np.array(columns)).reset()[:, 0].tolist()


def through_a_pipe(given):
    return cloudpickle.loads(cloudpickle.dumps(given))


@pytest.mark.parametrize(
    "given", ["CartPole-v1", lambda: gym.make("CartPole-v1"), gym.make("CartPole-v1"), [gym.make("CartPole-v1")] * 2]
)
@pytest.mark.parametrize("travel", [lambda given: given, through_a_pipe], ids=["here", "elsewhere"])
def test_an_id_a_callable_an_instance_and_a_list_give_the_same_episodes(given, travel):
    made = travel(UserEnvironments.of(given, 7))(np.array([1, 3]))
    expected = UserEnvironments.of("CartPole-v1", 7)(np.arange(4))
    assert np.array_equal(made.reset(), expected.reset()[[1, 3]])
    for _ in range(30):
        mine, other = made.step(np.ones(2, np.int64)), expected.step(np.ones(4, np.int64))
        assert np.array_equal(mine[0], other[0][[1, 3]])


def test_a_column_takes_the_entry_of_its_number_modulo_their_count():
    assert numbers([lambda n=n: Counter(n) for n in (10, 20, 30)], [0, 1, 2, 3, 5]) == [10, 20, 30, 10, 30]
    assert numbers([Counter(10), lambda: Counter(20)], [3, 2]) == [20, 10]


def test_an_instance_is_used_itself_by_its_column_and_copied_for_the_others():
    env = Recorded()
    made = UserEnvironments.of(env, 4)(np.arange(3))
    made.reset()
    assert env.seeds[-1] == episode_seed(4, 0, 0)
    assert made.state()[2]["episode"] == 0
    before = list(env.seeds)
    made.step(np.zeros(3, np.int64))
    assert env.t == 1
    assert env.seeds == before


def test_an_instance_belongs_to_the_user_and_is_not_closed():
    env = Recorded()
    given = UserEnvironments.of(env, 0)
    given.describe()
    made = given(np.arange(2))
    copied = made._envs[1]
    made.close()
    assert (env.closed, copied.closed) == (0, 1)


def test_one_instance_several_times_in_a_list_is_never_stepped_by_two_columns():
    env = Recorded()
    made = UserEnvironments.of([env] * 3, 0)(np.arange(3))
    made.reset()
    made.step(np.zeros(3, np.int64))
    assert env.t == 1
    assert env.seeds[-1] == episode_seed(0, 0, 0)


def test_one_to_look_at_leaves_the_instance_alone():
    env = Recorded()
    UserEnvironments.of(env, 0).single().reset(seed=0)
    assert (env.seeds, env.closed) == ([], 0)


def test_one_instance_several_times_in_a_list_is_one_in_a_worker_too():
    sent = cloudpickle.loads(cloudpickle.dumps(UserEnvironments.of([Recorded()] * 2, 0)))
    first, second = sent(np.arange(2))._envs
    assert first.step.__self__ is not second
    assert isinstance(second, Recorded)  # a copy, which is closed


def test_what_can_be_pickled_and_not_copied_is_copied_by_pickling():
    assert numbers(PicklesOnly(3), [0, 1]) == [3, 3]


def test_what_can_be_neither_copied_nor_pickled_says_to_give_what_makes_it():
    given = UserEnvironments.of(Locked(), 0)
    given([0]).reset()  # alone, it needs no copy
    expected = "Locked can be neither copied nor sent to another process .*callable such as lambda: MyEnvironment()"
    with pytest.raises(ConfigError, match=expected):
        given([0, 1])
    with pytest.raises(ConfigError, match=expected):
        cloudpickle.dumps(given)


def test_what_it_is_is_described_before_anything_is_stepped():
    described = UserEnvironments.of("Pendulum-v1", 0).describe()
    assert described.name == "Pendulum-v1"
    assert described.spaces.action == Box(-2, 2, (1,), np.float32)
    assert (described.agents, described.notes) == (None, ())


def test_what_several_columns_share_is_looked_at_once():
    made = []

    def make():
        made.append(Counter())
        return made[-1]

    UserEnvironments.of([make] * 4, 0).describe()
    assert len(made) == 1


def test_entries_with_different_spaces_are_refused_also_where_no_process_holds_two():
    given = UserEnvironments.of(["CartPole-v1", Counter], 0)
    with pytest.raises(SpaceError, match=r"CartPole-v1 has Box\(4,\) .* Counter has Box\(3,\)"):
        given.describe()


class Nothing:
    pass


class NoSpaces:
    def reset(self):
        return 0

    def step(self, action):
        return 0, 0, False, {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "3 is a int without .*expected a Gymnasium id, 'module:callable', an environment"),
        (None, "None is a NoneType"),
        ([], "The list of environments is empty"),
        (Nothing(), "is a Nothing without reset, step, observation_space, action_space"),
        (NoSpaces(), "without observation_space, action_space"),
        (
            gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
            "SyncVectorEnv of 2 environments; expected a single",
        ),
    ],
)
def test_what_is_no_environment_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        UserEnvironments.of(given, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: 3, "is a int without"),
        ("Nowhere-v1", "There is no Gymnasium environment 'Nowhere-v1'"),
        (lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), "expected a single one"),
    ],
)
def test_what_makes_no_environment_is_refused_when_it_is_made(given, message):
    with pytest.raises(ConfigError, match=message):
        UserEnvironments.of(given, 0).describe()


def test_a_missing_package_for_several_agents_is_named_with_what_installs_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'mpe2'", name="mpe2")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'etude\[multiagent\]'"):
        UserEnvironments.of("mpe2.simple_spread_v3:parallel_env", 0).describe()


class Drawn(Scripted):
    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    "given",
    ["CartPole-v1", lambda: gym.make("CartPole-v1"), gym.make("CartPole-v1"), Drawn, Drawn("rgb_array")],
    ids=["id", "callable", "instance", "class", "made to render"],
)
def test_one_to_look_at_renders(given):
    seen = UserEnvironments.of(given, 0).single("rgb_array")
    seen.reset(seed=0)
    assert seen.render().shape[2] == 3
    seen.close()


def test_what_cannot_render_says_how_to_make_it():
    with pytest.raises(
        ConfigError, match="was made with render_mode=None, and 'rgb_array' is needed here. Make it with"
    ):
        UserEnvironments.of(Drawn(), 0).single("rgb_array")


def test_one_to_look_at_is_stepped_in_the_agent_s_units_and_scored_as_one():
    pendulum = UserEnvironments.of("Pendulum-v1", 0).single()
    pendulum.reset(seed=0)
    pendulum.step(np.array([1.5], np.float32))
    assert pendulum.env.unwrapped.last_u == 1.5
    team = UserEnvironments.of(Relay, 0).single()
    assert team.reset(seed=3)["agents"][1].tolist() == [3, 1, 0]
    observation, score, terminated, truncated, _ = team.step(np.array([0, 0]))
    assert (score, terminated, truncated) == (11.0, False, False)


def test_goal_observations_and_trees_pass_as_they_are():
    space = Dict({"observation": Box(-1, 1, (2,), np.float32), "desired_goal": Discrete(3)})
    value = {"observation": np.zeros(2, np.float32), "desired_goal": 1}
    made = UserEnvironments.of(Scripted(space, reset=lambda seed: (value, {})), 0)([0])
    assert sorted(made.reset()) == ["desired_goal", "observation"]


def test_old_style_instances_are_copied_too():
    env = Old()
    made = UserEnvironments.of(env, 0)(np.arange(2))
    made.reset()
    made.step(np.zeros(2, np.int64))
    assert env.t == 1
    made.close()
    assert not env.closed
