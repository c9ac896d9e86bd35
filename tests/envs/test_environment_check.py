"""Every mistake in an environment is named, with its fix in one line."""

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence, Text
from worlds import Counter

from etude.envs import check_environment


class Good(gym.Env):
    """A walk on a line. The mistakes below are this one with one thing changed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.state = np.zeros(2, np.float32)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.5, 0.5, 2).astype(np.float32)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        self.state = np.clip(self.state + self.np_random.normal(0, 0.1, 2), -1, 1).astype(np.float32)
        return self.observe(), self.reward(), self.t >= 20, False, {}

    def observe(self):
        return self.state.copy()

    def reward(self):
        return 1.0

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


class WrongDtype(Good):
    def observe(self):
        return self.state.astype(np.float64)


class ListObservation(Good):
    def observe(self):
        return self.state.tolist()


class WrongShape(Good):
    def observe(self):
        return self.state[:, None].copy()


class NaN(Good):
    def observe(self):
        return np.full(2, np.nan, np.float32) if self.t == 7 else self.state.copy()


class OldStep(Good):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class NoInfo(Good):
    def step(self, action):
        return super().step(action)[:4]


class BareReset(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class InfoIsNone(Good):
    def step(self, action):
        return (*super().step(action)[:4], None)


class Outside(Good):
    def observe(self):
        return self.state + np.float32(5)


class RewardArray(Good):
    def reward(self):
        return np.ones(1)


class RewardNaN(Good):
    def reward(self):
        return float("nan")


class DoneAsInt(Good):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class Unseeded(Good):
    def reset(self, *, seed=None, options=None):
        super().reset()
        self.state = np.random.default_rng().uniform(-0.5, 0.5, 2).astype(np.float32)
        return self.observe(), {}


class NoSeed(Good):
    def reset(self):
        return super().reset()


class LopsidedActions(Good):
    action_space = Box(0, 1, (2,), np.float32)


class UnboundedActions(Good):
    action_space = Box(-np.inf, np.inf, (2,), np.float32)


class ShiftedActions(Good):
    action_space = Discrete(2, start=1)


class ShiftedMultiActions(Good):
    action_space = MultiDiscrete([2, 2], start=[0, 1])


class FloatImage(Good):
    observation_space = Box(0, 1, (16, 16, 3), np.float32)

    def observe(self):
        return np.full((16, 16, 3), abs(self.state[0]), np.float32)


class TakesNoRenderMode(Good):
    def __init__(self):
        super().__init__()


class DropsRenderMode(Good):
    def __init__(self, render_mode=None):
        super().__init__()


class NoRenderModes(Good):
    metadata = {}


class Milliseconds(Good):
    observation_space = Box(0, 2**62, (2,), np.int64)

    def observe(self):
        return np.array([self.t, 1_700_000_000_000 + 17 * self.t])


class Varied(Good):
    observation_space = Sequence(Discrete(2))

    def observe(self):
        return (0, 1)


class NotCopied(Good):
    def step(self, action):
        state = self.state
        result = super().step(action)
        state[:] = self.state
        self.state = state
        return (state, *result[1:])

    def observe(self):
        return self.state


class Endless(Good):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class ResetsItself(Good):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated:
            info["final_observation"] = observation
            observation, _ = self.reset()
        return observation, reward, terminated, truncated, info


class Raises(Good):
    def step(self, action):
        return self.missing


class NoSpaces(gym.Env):
    pass


class WrongKeys(Good):
    observation_space = Dict({"x": Box(-1, 1, (2,), np.float32), "y": Discrete(2)})

    def observe(self):
        return {"x": self.state.copy()}


class TextActions(Good):
    action_space = Text(5)


class Told(Good):
    observation_space = Text(5, charset="abc")

    def observe(self):
        return "abcab"[: self.t % 5 + 1]


class ToldTooMuch(Told):
    def observe(self):
        return "ab" * (1 + self.t)


class ToldNumbers(Told):
    def observe(self):
        return np.zeros(2) if self.t else "a"


MISTAKES = [
    (WrongDtype, "dtype", "float64, its space float32.*astype"),
    (ListObservation, "dtype", r"a list.*np\.array"),
    (WrongShape, "shape", r"\(2, 1\), its space Box\(2,\)"),
    (NaN, "finite", "holds nan"),
    (OldStep, "step", "old Gym API.*terminated.*truncated"),
    (NoInfo, "step", "info is missing"),
    (BareReset, "reset", "bare ndarray.*return observation, {}"),
    (InfoIsNone, "info", "NoneType.*dict"),
    (Outside, "bounds", "where its space has -1.0 to 1.0.*Widen"),
    (RewardArray, "reward", r"array of shape \(1,\).*float\(reward\)"),
    (RewardNaN, "reward", "nan.*finite"),
    (DoneAsInt, "done", r"terminated is 0, a int.*bool\("),
    (Unseeded, "seed", r"super\(\).reset\(seed=seed\)"),
    (NoSeed, "seed", "seed=None, options=None"),
    (LopsidedActions, "action bounds", "not symmetric.*scales"),
    (UnboundedActions, "action bounds", "not bounded.*finite bounds"),
    (ShiftedActions, "action start", "start at 1.*counts from 0"),
    (ShiftedMultiActions, "action start", "counts from 0"),
    (FloatImage, "float image", "uint8"),
    (TakesNoRenderMode, "render_mode", "takes no render_mode: def __init__"),
    (DropsRenderMode, "render_mode", "its render_mode is None"),
    (NoRenderModes, "render_mode", "metadata = "),
    (Milliseconds, "precision", r"observation\[1\] went from .* float32, in which these are one value"),
    (NotCopied, "copy", r"\.copy\(\)"),
    (ResetsItself, "autoreset", "Leave resets to etude"),
    (Raises, "exception", "AttributeError.*test_environment_check.py:"),
    (NoSpaces, "observation_space", "Set self.observation_space"),
    (WrongKeys, "structure", r"keys \['x'\].*\['x', 'y'\]"),
    (TextActions, "space", "ActionWrapper"),
    (ToldTooMuch, "bounds", "is 'ababab.*', outside of Text"),
    (ToldNumbers, "dtype", "is a ndarray, its space Text.* Return a text"),
    (lambda: 3, "making", "expected a gymnasium.Env"),
    ("NoSuchThing-v0", "making", "There is no Gymnasium environment"),
]


@pytest.mark.parametrize(("env", "name", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_each_mistake_is_named_with_its_fix_and_nothing_else_is(env, name, message):
    findings = check_environment(env)
    assert [finding.name for finding in findings] == [name], findings
    assert re.search(message, findings[0].message), findings[0].message
    assert "\n" not in findings[0].message


@pytest.mark.parametrize(
    "env", [Good, Told, "CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4", "LunarLander-v3"]
)
def test_nothing_is_found_in_a_good_environment(env):
    assert check_environment(env) == []


def test_what_is_wrong_beside_an_unknown_space_is_found_as_well():
    assert [finding.name for finding in check_environment(Varied)] == ["space", "dtype"]


def test_an_episode_without_end_is_a_note_and_does_not_hang(monkeypatch):
    monkeypatch.setattr("etude.envs.check.STEPS", 200)
    (finding,) = check_environment(Endless)
    assert (finding.name, finding.kind) == ("endless", "note")
    assert "TimeLimit" in finding.message


def test_slow_environments_are_given_up_on_in_time(monkeypatch):
    monkeypatch.setattr("etude.envs.check.SECONDS", 0.0)
    assert [finding.name for finding in check_environment(Endless)] == ["endless"]


def test_what_works_here_and_may_not_elsewhere_is_a_note():
    assert [check_environment(env)[0].kind for env in (LopsidedActions, ShiftedActions)] == ["note", "note"]
    assert check_environment(UnboundedActions)[0].kind == "mistake"


def test_several_mistakes_are_all_named():
    class Bad(WrongDtype, DoneAsInt, RewardArray, TakesNoRenderMode):
        pass

    assert {finding.name for finding in check_environment(Bad)} == {"dtype", "done", "reward", "render_mode"}


def test_a_wrapper_that_resets_is_named():
    def make(render_mode=None):
        return gym.wrappers.Autoreset(Good(render_mode))

    (finding,) = check_environment(make)
    assert finding.name == "autoreset"


def test_a_simulator_that_does_not_say_how_it_resets_is_named():
    def make(num_envs):
        simulator = gym.vector.SyncVectorEnv([Counter] * num_envs)
        simulator.metadata = {}
        return simulator

    (finding,) = check_environment(make)
    assert finding.name == "autoreset"
    assert "AutoresetMode" in finding.message


def test_a_good_simulator_is_not_complained_about():
    assert check_environment(lambda num_envs: gym.vector.SyncVectorEnv([Counter] * num_envs)) == []
