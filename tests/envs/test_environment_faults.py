"""A fault of an environment names the environment, the episode, the step and the key, and what to do."""

import sys
import threading
import traceback
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import SyncVectorEnv
from worlds import Counter, Relay, Scripted, always

from etude.base.errors import EnvironmentFault, NumericalError, SpaceError
from etude.base.seeding import episode_seed
from etude.envs import AdaptedEnvironment, LoopEnvironments, NativeEnvironments, make_environments

ZEROS = np.zeros(2, np.float32)
DICT = gym.spaces.Dict({"camera": Box(0, 255, (2, 2), np.uint8), "speed": Box(-9, 9, (2,), np.float32)})


def run(env_of_column_4, steps=5, columns=(3, 4, 5)):
    """Steps three environments, of which the middle one, number 4, is the one under test."""
    space, action_space = env_of_column_4.observation_space, env_of_column_4.action_space
    sample = space.sample()
    healthy = [Scripted(space, action_space, lambda seed: (sample, {}), always(sample, 0.0, False, False, {}))] * 2
    makes = iter([healthy[0], env_of_column_4, healthy[1]])
    environments = LoopEnvironments(lambda: next(makes), np.array(columns), 0, name="World")
    environments.reset()
    for _ in range(steps):
        environments.step(np.zeros(3, np.int64))


def at_step_3(*values):
    return lambda t: values if t == 3 else (ZEROS, 0.0, False, False, {})


BROKEN_STEPS = {
    "NaN observation": ((np.array([0, np.nan], np.float32), 0.0, False, False, {}), "is nan at flat index 1"),
    "infinite observation": ((np.array([np.inf, 0], np.float32), 0.0, False, False, {}), "is inf at flat index 0"),
    "NaN last observation": ((np.array([0, np.nan], np.float32), 0.0, True, False, {}), "is nan at flat index 1"),
    "wrong shape": ((np.zeros(3, np.float32), 0.0, False, False, {}), r"has shape \(3,\); expected Box\(2,\) float32"),
    "shape that would broadcast": ((np.zeros(1, np.float32), 0.0, False, False, {}), r"has shape \(1,\)"),
    "wrong dtype": ((np.zeros(2, complex), 0.0, False, False, {}), "has dtype complex128.*astype"),
    "None": ((None, 0.0, False, False, {}), "is a NoneType"),
    "NaN reward": ((ZEROS, float("nan"), False, False, {}), "the reward is nan"),
    "infinite reward": ((ZEROS, np.inf, False, False, {}), "the reward is inf"),
    "reward of the last step": ((ZEROS, np.nan, True, False, {}), "the reward is nan"),
    "several rewards": (
        (ZEROS, np.array([0.5, 2.0]), False, False, {}),
        r"\(shape \(2,\)\); expected one number.*TransformReward\(env, .*reward @ \[1.0, 1.0\]",
    ),
    "reward array": ((ZEROS, np.zeros(1), False, False, {}), r"\[0\.\] \(shape \(1,\)\); expected one number"),
    "no reward": ((ZEROS, None, False, False, {}), "the reward is None"),
    "reward text": ((ZEROS, "much", False, False, {}), "the reward is much"),
    "flag array": ((ZEROS, 0.0, np.ones(1, bool), False, {}), "terminated is array.*one bool"),
    "truncated array": ((ZEROS, 0.0, True, np.ones(1, bool), {}), "truncated is array.*one bool"),
    "flag arrays": ((ZEROS, 0.0, np.ones(2, bool), False, {}), "terminated is array.*one bool"),
    "false flag array": ((ZEROS, 0.0, np.zeros(1, bool), False, {}), "terminated is array.*one bool"),
    "no flag": ((ZEROS, 0.0, None, False, {}), "terminated is None, a NoneType; expected one bool"),
    "no truncated": ((ZEROS, 0.0, False, None, {}), "truncated is None"),
    "flag text": ((ZEROS, 0.0, "no", False, {}), "terminated is 'no', a str"),
    "empty text": ((ZEROS, 0.0, "", False, {}), "terminated is '', a str"),
    "flag 2": ((ZEROS, 0.0, 2, False, {}), "terminated is 2, a int"),
    "NaN flag": ((ZEROS, 0.0, False, float("nan"), {}), "truncated is nan, a float"),
    "old Gym": ((ZEROS, 0.0, False, {}), "four values, as the old Gym API does.*Split `done`"),
    "no info": ((ZEROS, 0.0, False, False), "info is missing"),
    "nothing": (None, "returned a NoneType"),
}


@pytest.mark.parametrize("case", BROKEN_STEPS)
def test_a_broken_step_names_environment_episode_and_step(case):
    result, message = BROKEN_STEPS[case]
    script = (lambda t: result if t == 3 else (ZEROS, 0.0, False, False, {})) if result is None else at_step_3(*result)
    with pytest.raises(EnvironmentFault, match=f"World, environment 4, episode 0, step 3: .*{message}"):
        run(Scripted(step=script))


OUTSIDE = {
    "discrete": (Discrete(4), np.int64(4), r"the observation is 4, which is outside of Discrete\(4\)"),
    "counted from 1": (Discrete(3, start=1), np.int64(0), r"is 0, which is outside of Discrete\(3, start=1\)"),
    "multidiscrete": (MultiDiscrete([3, 2]), np.array([2, 2]), r"is \[2 2\], which is outside of MultiDiscrete"),
    "below": (MultiDiscrete([3, 2]), np.array([-1, 0]), r"is \[-1  0\], which is outside"),
    "multibinary": (MultiBinary(2), np.array([1, 2], np.int8), r"is \[1 2\], which is outside of MultiBinary\(2\)"),
    "in a dict": (
        gym.spaces.Dict({"state": Discrete(2)}), {"state": np.int64(2)}, r"observation .state. is 2, which is outside"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDE)
def test_the_first_observation_outside_of_a_counted_space_is_a_fault(case):
    space, wrong, message = OUTSIDE[case]
    right = space.sample()
    env = Scripted(space, None, lambda seed: (right, {}), lambda t: (wrong if t == 3 else right, 0.0, False, False, {}))
    with pytest.raises(EnvironmentFault, match=f"World, environment 4, episode 0, step 3: .*{message}"):
        run(env)
    late = Scripted(space, None, lambda seed: (right, {}), lambda t: (wrong, 0.0, True, False, {}))
    with pytest.raises(EnvironmentFault, match="which is outside"):
        run(late)


def test_a_number_that_is_too_large_for_float32_is_told_as_it_was():
    space, small = Box(-np.inf, np.inf, (2,), np.float64), np.zeros(2)
    env = Scripted(space, None, lambda seed: (small, {}), always(np.array([0, 1e39]), 0.0, False, False, {}))
    with pytest.raises(EnvironmentFault, match=r"is 1e\+39 at flat index 1; agents see float32, which ends at 3.4e38"):
        run(env)


COARSE = {
    "floats": (Box(-np.inf, np.inf, (2,), np.float64), lambda t: np.array([0.1, 1e8 + t % 2]), True),
    "milliseconds": (Box(0, 2**62, (2,), np.int64), lambda t: np.array([3, 1_700_000_000_000 + 17 * t]), True),
    "at rest": (Box(-np.inf, np.inf, (2,), np.float64), lambda t: np.array([0.1 + 1e-12 * t, 3.0]), False),
    "told apart": (Box(-np.inf, np.inf, (2,), np.float64), lambda t: np.array([t * 1e4, 1e8 + 100 * t]), False),
}


@pytest.mark.parametrize("case", COARSE)
def test_numbers_that_float32_cannot_tell_apart_are_warned_of_once(case):
    space, observed, coarse = COARSE[case]
    env = Scripted(space, None, lambda seed: (observed(0), {}), lambda t: (observed(t), 0.0, False, False, {}))
    environments = LoopEnvironments(lambda: env, np.array([4]), 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        environments.reset()
        for _ in range(80):
            environments.step(np.zeros(1, np.int64))
    assert len(told) == coarse
    if coarse:
        assert "The observation[1] went from" in str(told[0].message) and "one value" in str(told[0].message)


@pytest.mark.parametrize("flag", [np.bool_, int, np.int64, float], ids=lambda kind: kind.__name__)
def test_numpys_bools_and_zeros_and_ones_are_flags(flag):
    env = Scripted(step=lambda t: (ZEROS, 0.0, flag(t == 2), flag(0), {}))
    environments = LoopEnvironments(lambda: env, np.array([4]), 0)
    environments.reset()
    told = [environments.step(np.zeros(1, np.int64))[2] for _ in range(4)]
    assert [array.tolist() for array in told] == [[False], [True], [False], [True]]
    assert all(array.dtype == bool for array in told)


@pytest.mark.parametrize("flag", [None, "no", 2, np.zeros(1, bool), float("nan")], ids=str)
def test_a_flag_that_is_none_is_refused_of_one_environment_too(flag):
    env = AdaptedEnvironment(Scripted(step=always(ZEROS, 0.0, False, flag, {})), "World")
    env.reset()
    with pytest.raises(EnvironmentFault, match="World, environment 0, episode 0, step 1: truncated is"):
        env.step(0)


def test_a_fault_in_a_later_episode_counts_episodes_and_steps_from_their_starts():
    ends = iter([False, True] * 3 + [False])

    def script(t):
        last = next(ends, None)
        return (ZEROS, 0.0, last, False, {}) if last is not None else (ZEROS, np.nan, False, False, {})

    with pytest.raises(EnvironmentFault, match="environment 4, episode 3, step 2: the reward"):
        run(Scripted(step=script), steps=9)


def test_steps_that_left_an_environment_out_do_not_count_in_its_faults():
    makes = iter([Scripted(), Scripted(step=at_step_3(ZEROS, np.nan, False, False, {}))])
    environments = LoopEnvironments(lambda: next(makes), np.arange(2), 0)
    environments.reset()
    with pytest.raises(EnvironmentFault, match="environment 1, episode 0, step 3: the reward"):
        for n in (2, 1, 1, 2, 1, 2):
            environments.step(np.zeros(n, np.int64))


def test_a_fault_of_the_reset_after_an_episode_says_so():
    resets = iter([ZEROS, ZEROS, np.full(2, np.nan, np.float32)])
    env = Scripted(reset=lambda seed: (next(resets), {}), step=lambda t: (ZEROS, 0.0, t == 2, False, {}))
    makes = iter([env])
    environments = LoopEnvironments(lambda: next(makes), np.array([4]), 0, name="World")
    environments.reset()
    environments.step(np.zeros(1, np.int64))
    with pytest.raises(EnvironmentFault, match="environment 4, episode 1, reset: the observation is nan"):
        environments.step(np.zeros(1, np.int64))


def test_a_fault_of_a_nested_observation_names_the_key():
    good = {"camera": np.zeros((2, 2), np.uint8), "speed": ZEROS}
    cases = [
        ({**good, "speed": np.full(2, np.nan, np.float32)}, "the observation 'speed' is nan"),
        ({**good, "camera": np.zeros((2, 2), np.float32)}, "the observation 'camera' has dtype float32.*astype.*uint8"),
        ({"camera": good["camera"]}, "lacks the key 'speed'"),
        (ZEROS, "is a ndarray; expected a dict"),
    ]
    for bad, message in cases:
        env = Scripted(DICT, reset=lambda seed: (good, {}), step=always(bad, 0.0, False, False, {}))
        with pytest.raises(EnvironmentFault, match=f"environment 4, episode 0, step 1: .*{message}"):
            run(env)


def test_a_bare_observation_from_reset_says_what_to_return():
    with pytest.raises(
        EnvironmentFault, match="environment 4, .*reset: reset returned a bare ndarray.*observation, {}"
    ):
        run(Scripted(reset=lambda seed: ZEROS))


def test_an_exception_of_the_environment_is_chained_with_its_own_traceback():
    def script(t):
        return 1 / (t - 3)

    with pytest.raises(EnvironmentFault, match="environment 4, episode 0, step 3.*ZeroDivisionError") as caught:
        run(Scripted(step=lambda t: (ZEROS, script(t), False, False, {})))
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    names = []
    frame = cause.__traceback__
    while frame:
        names.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    assert names[-1] == "script"


def this_file(words):
    return rf"{words} \(.*test_environment_faults.py:\d+\)"


def test_an_exception_names_the_user_s_line_and_the_seed_of_the_episode():
    def script(t):
        return np.reshape(np.zeros(2), 3) if t == 3 else (ZEROS, 0.0, False, False, {})  # raised within NumPy

    env = gym.wrappers.TimeLimit(Scripted(step=script), 100)
    seed = episode_seed(0, 4, 0)
    words = this_file("environment 4, episode 0, step 3: the environment raised ValueError: cannot reshape.*")
    with pytest.raises(EnvironmentFault, match=rf"{words}\. The episode began with reset\(seed={seed}\)\."):
        run(env)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("this error cannot be printed")


LOUD = [
    (Unprintable(), r"Unprintable: \(no text: its __str__ raised RuntimeError\)"),
    (
        ValueError("the head" + 5_000_000 * "!" + "the tail"),
        r"the head!+ \[... \d+ characters left out ...\] !+the tail",
    ),
    (SystemExit("that was all"), "SystemExit: that was all"),
    (SystemExit(), "SystemExit: "),
]


@pytest.mark.parametrize(("error", "words"), LOUD)
@pytest.mark.parametrize("moment", ["reset", "step"])
def test_whatever_an_environment_raises_is_a_fault_in_bounded_words(moment, error, words):
    def script(number):
        raise error

    env = Scripted(**{moment: script})
    with pytest.raises(EnvironmentFault, match=this_file(f"environment 4, .*{words}")) as found:
        if moment == "reset":
            LoopEnvironments(lambda: env, np.array([4]), 0).reset()
        run(env)
    assert len(str(found.value)) < 2000
    assert len("".join(traceback.format_exception(found.value))) < 50_000


def test_what_a_constructor_raises_is_a_fault_with_the_user_s_line():
    def make():
        sys.exit("no licence")

    with pytest.raises(EnvironmentFault, match=this_file("'make' could not be made: it raised SystemExit: no licence")):
        make_environments(make, np.arange(1), 0)


def closing(close):
    env = Scripted()
    env.close = close
    return env


def test_a_close_that_raises_costs_a_warning_and_closes_the_others():
    closed = []
    makes = iter([closing(lambda: closed.append(0)), closing(lambda: 1 / 0), closing(lambda: closed.append(2))])
    environments = LoopEnvironments(lambda: next(makes), np.arange(3), 0, name="World")
    with pytest.warns(RuntimeWarning, match=this_file(r"World: close\(\) raised ZeroDivisionError: .*")):
        environments.close()
    assert sorted(closed) == [0, 2]
    environments.close()


def test_a_close_that_hangs_is_given_up_and_where_it_hangs_is_told(monkeypatch):
    monkeypatch.setattr("etude.envs.faults.SECONDS", 0.2)
    go_on = threading.Event()
    environments = LoopEnvironments(lambda: closing(lambda: go_on.wait(60)), np.arange(1), 0, name="World")
    with pytest.warns(RuntimeWarning, match=this_file(r"World: close\(\) did not return within 0.2 s")):
        environments.close()
    go_on.set()


def test_what_only_its_own_thread_may_close_is_closed_by_it():
    own, closed = threading.current_thread(), []

    def close():
        if threading.current_thread() is not own:
            raise RuntimeError("wrong thread")
        closed.append(True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LoopEnvironments(lambda: closing(close), np.arange(1), 0).close()
    assert closed == [True]


def test_an_exception_in_reset_is_chained():
    def script(seed):
        raise KeyError("map")

    with pytest.raises(EnvironmentFault, match="reset: the environment raised KeyError") as caught:
        LoopEnvironments(lambda: Scripted(reset=script), np.arange(1), 0)
    assert isinstance(caught.value.__cause__, KeyError)


def test_large_finite_values_are_no_fault():
    large = np.full(2, 3e38, np.float32)  # its square is not finite
    env = Scripted(Box(-np.inf, np.inf, (2,)), step=always(large, 3e38, False, False, {}))
    environments = LoopEnvironments(lambda: env, np.arange(1), 0)
    environments.reset()
    observation, reward, *_ = environments.step(np.zeros(1, np.int64))
    assert np.array_equal(observation[0], large)
    assert reward[0] == np.float32(3e38)


def test_an_action_that_is_not_finite_is_blamed_on_the_agent():
    environments = LoopEnvironments(lambda: Scripted(action_space=Box(-1, 1, (2,))), np.arange(2), 0)
    environments.reset()
    with pytest.raises(NumericalError, match="agent chose .* for environment 1"):
        environments.step(np.array([[0, 0], [0, np.nan]], np.float32))


def test_an_action_of_a_wrong_shape_says_which_is_expected():
    environments = LoopEnvironments(lambda: Scripted(action_space=Box(-1, 1, (2,))), np.arange(2), 0)
    environments.reset()
    with pytest.raises(SpaceError, match=r"has shape \(2,\); got \(3,\)"):
        environments.step(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("flag", [None, [False], [0, 2], [0.0, np.nan], ["", "no"]], ids=str)
def test_flags_of_a_simulator_that_say_neither_yes_nor_no_are_refused(flag):
    simulator = SyncVectorEnv([Counter, Counter], autoreset_mode="SameStep")
    environments = NativeEnvironments(simulator, np.array([7, 8]), 0, name="Fleet")
    environments.reset()
    step = simulator.step
    simulator.step = lambda action: (*step(action)[:2], flag, np.zeros(2, np.int64), {})
    with pytest.raises(EnvironmentFault, match="Fleet, environment .*, episode 0, step 1: terminated"):
        environments.step(np.zeros(2, np.int64))


def simulator_of(broken):
    return NativeEnvironments(
        SyncVectorEnv([Counter, lambda: broken], autoreset_mode="SameStep"), np.array([7, 8]), 0, name="Fleet"
    )


class Poisoned(Counter):
    def __init__(self, at, observation=0.0, reward=0.0):
        super().__init__()
        self.at, self.add_observation, self.add_reward = at, observation, reward

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.t == self.at:
            observation, reward = observation + np.float32(self.add_observation), reward + self.add_reward
        return observation, reward, *rest


def test_a_simulator_s_fault_names_the_environment_and_step():
    for poisoned, message in [
        (Poisoned(2, reward=np.inf), "the reward is inf"),
        (Poisoned(2, observation=np.inf), "the observation is inf"),
        (Poisoned(5, observation=np.float32(np.nan)), "the observation is nan"),
    ]:
        environments = simulator_of(poisoned)
        environments.reset()
        environments.step(np.zeros(2, np.int64))
        environments.reset()
        with pytest.raises(EnvironmentFault, match=f"Fleet, environment 8, episode ., step [25]: {message}"):
            for _ in range(20):
                environments.step(np.zeros(2, np.int64))


def test_an_exception_in_a_simulator_is_chained():
    class Raising(Counter):
        def step(self, action):
            raise ValueError("out of fuel")

    environments = simulator_of(Raising())
    environments.reset()
    with pytest.raises(EnvironmentFault, match="Fleet, environment one of 7 to 8.*out of fuel") as caught:
        environments.step(np.zeros(2, np.int64))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_single_environment_names_its_faults_too():
    environment = AdaptedEnvironment(
        Scripted(step=at_step_3(np.array([0, np.nan], np.float32), 0.0, True, False, {})), "One"
    )
    environment.reset(seed=1)
    environment.step(0)
    environment.step(1)
    with pytest.raises(EnvironmentFault, match="One, environment 0, episode 0, step 3: the observation is nan"):
        environment.step(0)


def test_discrete_observations_outside_their_kind_are_faults():
    env = Scripted(Discrete(4), reset=lambda seed: (0, {}), step=always(1.5, 0.0, False, False, {}))
    with pytest.raises(EnvironmentFault, match="has dtype float64"):
        run(env)


@pytest.mark.parametrize(("reward", "kind"), [("1.0", "str"), (np.str_("1.0"), "str_"), (b"1.0", "bytes")])
def test_a_reward_that_is_a_text_is_no_number(reward, kind):
    world = Scripted(reset=lambda seed: (ZEROS, {}), step=always(ZEROS, reward, False, False, {}))
    with pytest.raises(EnvironmentFault, match=rf"environment 4.*the reward is .*1.0.* \({kind}\); expected one"):
        run(world)

    class Two(Relay):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return observations, {**rewards, "a": reward}, *rest

    environments = make_environments(Two, np.arange(1), 0)
    environments.reset()
    with pytest.raises(EnvironmentFault, match=rf"a reward is .*1.0.*, a {kind}; expected one number"):
        environments.step(np.zeros((1, 2), np.int64))


def test_an_observation_that_requires_a_gradient_is_told():
    torch = pytest.importorskip("torch")
    parameter = torch.zeros(2, requires_grad=True)
    world = Scripted(reset=lambda seed: (ZEROS, {}), step=always(parameter, 0.0, False, False, {}))
    with pytest.raises(EnvironmentFault, match="environment 4.*the observation is a Tensor: .*requires grad.*detach"):
        run(world)
