"""Environments in the style of old Gym are adapted where that is asked for, with one warning."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from worlds import Counter, Old, Scripted

from etude.base.errors import ConfigError, EnvironmentFault, SpaceError
from etude.base.seeding import episode_seed
from etude.envs import make_environments
from etude.solo.environments import UserEnvironments


def environments(given, n=1):
    return UserEnvironments.of(given, 5)(np.arange(n))


def play(made, steps):
    made.reset()
    return [made.step(np.zeros(1, np.int64)) for _ in range(steps)]


@pytest.mark.parametrize(("limited", "terminated"), [(False, True), (True, False)])
def test_done_means_terminated_unless_the_time_ran_out(limited, terminated):
    *before, last = play(environments(lambda: Old(3, limited)), 3)
    assert not any(step[2][0] or step[3][0] for step in before)
    assert (last[2].tolist(), last[3].tolist()) == ([terminated], [not terminated])
    assert last[4][0][1] == 3


def test_a_mark_of_the_time_limit_without_done_ends_nothing():
    class Marked(Old):
        def step(self, action):
            observation, reward, done, _ = super().step(action)
            return observation, reward, done, {"TimeLimit.truncated": True}

    first, *_ = play(environments(Marked), 1)
    assert (first[2].tolist(), first[3].tolist()) == ([False], [False])


def test_seeds_go_to_the_method_seed():
    made = environments(Old)
    steps = play(made, 3)
    assert steps[0][0][0, 0] == np.float32(episode_seed(5, 0, 0))
    assert steps[2][0][0, 0] == np.float32(episode_seed(5, 0, 1))


def test_seeds_go_to_reset_where_it_takes_one():
    class Seeded(Old):
        def reset(self, seed=None):
            self.given = -1 if seed is None else seed
            return super().reset()

    assert environments(Seeded).reset()[0, 0] == np.float32(episode_seed(5, 0, 0))


def test_a_gymnasium_class_with_a_bare_reset_is_adapted_too():
    def bare(seed):
        return np.zeros(2, np.float32)

    made = environments(lambda: Scripted(reset=bare, step=lambda t: (np.ones(2, np.float32), 1.0, t == 2, {})))
    assert play(made, 2)[1][2].tolist() == [True]


def test_there_is_one_warning_and_it_says_what_was_adapted():
    (told,) = UserEnvironments.of([Old, lambda: Old(), lambda: Old()], 0).describe().notes
    assert told == (
        "Old is in the style of old Gym (it is no gymnasium.Env, reset takes no seed, reset returns a bare "
        "observation) and is adapted: done counts as terminated, or as truncated where "
        "info['TimeLimit.truncated'] is true."
    )
    assert UserEnvironments.of("CartPole-v1", 0).describe().notes == ()
    assert UserEnvironments.of(Counter(), 0).describe().notes == ()


def test_the_warning_says_where_episodes_cannot_repeat():
    class Unseeded(Old):
        seed = None

    (told,) = UserEnvironments.of(Unseeded, 0).describe().notes
    assert "its episodes do not repeat, and copies of one instance may all draw the same numbers" in told
    assert environments(Unseeded).reset().tolist() == [[-1, 0]]


class OldBox:
    """What a Box of the gym package has."""

    def __init__(self, low, high, dtype=np.float32):
        self.low, self.high, self.dtype = np.asarray(low, dtype), np.asarray(high, dtype), np.dtype(dtype)
        self.shape = self.low.shape


class OldDiscrete:
    """What a Discrete of the gym package has."""

    def __init__(self, n):
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


def test_plain_spaces_of_the_gym_package_are_rebuilt():
    class Spaced(Old):
        observation_space = OldBox([-1, 0], [2.0**31, 9], np.float64)
        action_space = OldDiscrete(4)

    described = UserEnvironments.of(Spaced, 0).describe()
    assert described.spaces.action == Discrete(4)
    assert described.spaces.observation == Box(
        np.array([-1, 0], np.float32), np.array([2.0**31, 9], np.float32), dtype=np.float32
    )
    assert "its spaces are not Gymnasium's" in described.notes[0]


def test_a_space_of_another_kind_is_refused_with_what_to_do():
    class Spaced(Old):
        action_space = "left or right"

    with pytest.raises(SpaceError, match="The action space of Spaced is a builtins.str; .*Declare it with gymnasium"):
        environments(Spaced)


def test_a_step_of_neither_style_is_explained():
    class Short(Old):
        def step(self, action):
            return super().step(action)[:3]

    made = environments(Short)
    made.reset()
    with pytest.raises(EnvironmentFault, match="step 1: step returned 3 values"):
        made.step(np.zeros(1, np.int64))


def test_a_done_that_says_neither_yes_nor_no_is_refused():
    class Undecided(Old):
        def step(self, action):
            observation, reward, _, info = super().step(action)
            return observation, reward, None, info

    made = environments(Undecided)
    made.reset()
    with pytest.raises(EnvironmentFault, match="step 1: .*done is None"):
        made.step(np.zeros(1, np.int64))


def test_five_values_are_taken_as_they_are():
    class Half(Old):
        def step(self, action):
            observation, reward, done, info = super().step(action)
            return observation, reward, False, done, info

    assert play(environments(Half), 3)[2][3].tolist() == [True]


def test_an_open_episode_is_replayed():
    one, other = environments(lambda: Old(9)), environments(lambda: Old(9))
    play(one, 4)
    observation, differs = other.restore(one.state())
    assert (differs, observation[0, 1]) == ([], 4)


def test_it_renders_as_it_did():
    class Drawn(Old):
        def render(self, mode="human"):
            return np.full((2, 2, 3), mode == "rgb_array")

    seen = UserEnvironments.of(Drawn, 0).single("rgb_array")
    assert seen.env.render_mode == "rgb_array"
    assert seen.render().all()


def test_it_is_closed_where_etude_made_it():
    kept = []

    def make():
        kept.append(Old())
        return kept[-1]

    made = environments(make)
    made.close()
    assert kept[0].closed


def test_runs_go_on_refusing_it():
    class Bare(gym.Env):
        observation_space, action_space = Old.observation_space, Old.action_space
        reset, step = Old.reset, Old.step

    with pytest.raises(ConfigError, match="expected a gymnasium.Env"):
        make_environments(Old, np.arange(1), 0)
    with pytest.raises(EnvironmentFault, match="seed"):
        make_environments(Bare, np.arange(1), 0)
