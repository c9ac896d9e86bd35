"""Environments that are right are accused of nothing, and what lasts from episode to episode is named as what it is."""

import re
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from test_environment_check import Good
from worlds import Relay

from etude.envs import check_environment


class SpacesMadeAtReset(Good):
    """Makes both of its spaces anew, and so forgets how they were seeded."""

    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.action_space = Discrete(4)
        self.observation_space = Box(-1, 1, (2,), np.float32)
        return super().reset(seed=seed)

    def step(self, action):
        self.state += np.float32(0.01) * action
        return super().step(action)


class Forbids(Good):
    """Raises at an action that its mask forbids. One action is allowed, and which follows from the time."""

    action_space = Discrete(5, start=3)

    def mask(self):
        return np.arange(5) == self.t % 5

    def check(self, action):
        if not self.mask()[action - 3]:
            raise ValueError(f"action {action} is forbidden")

    def step(self, action):
        self.check(action)
        return super().step(action)


class MaskInInfo(Forbids):
    action_space = Discrete(5)

    def check(self, action):
        super().check(action + 3)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": self.mask().astype(np.int8)}

    def step(self, action):
        return *super().step(action)[:4], {"action_mask": self.mask().astype(np.int8)}


class MaskInObservation(MaskInInfo):
    observation_space = Dict({"place": Box(-1, 1, (2,), np.float32), "action_mask": Box(0, 1, (5,), np.int8)})

    def observe(self):
        return {"place": self.state.copy(), "action_mask": self.mask().astype(np.int8)}


class MaskOfTwo(MaskInInfo):
    action_space = MultiDiscrete([2, 3])

    def mask(self):
        return np.concatenate([np.arange(2) == self.t % 2, np.arange(3) == self.t % 3])

    def check(self, action):
        if tuple(action) != (self.t % 2, self.t % 3):
            raise ValueError(f"action {action} is forbidden")


class SeveralWithMasks(Relay):
    """Each agent may only do what its turn says."""

    def __init__(self, render_mode=None):
        super().__init__({"a": (4, "terminated"), "b": (4, "terminated")}, {"a": Discrete(3), "b": Discrete(4)})

    def observation_space(self, agent):
        n = self.action_space(agent).n
        return Dict({"observation": super().observation_space(agent), "action_mask": Box(0, 1, (n,), np.int8)})

    def step(self, actions):
        assert all(action == self.t % 3 for action in actions.values()), actions
        return super().step(actions)

    def _observe(self, names):
        masks = {name: np.int8(np.arange(self.action_space(name).n) == self.t % 3) for name in names}
        return {
            name: {"observation": seen, "action_mask": masks[name]} for name, seen in super()._observe(names).items()
        }


def wrapped(wrap):
    return lambda render_mode=None: wrap(Good(render_mode))


RIGHT = {
    **{
        name: name
        for name in gym.registry
        if gym.spec(name).entry_point
        and str(gym.spec(name).entry_point).startswith(("gymnasium.envs.classic_control", "gymnasium.envs.toy_text"))
        and not name.startswith("tabular")
    },
    **{kind.__name__: kind for kind in (SpacesMadeAtReset, MaskInInfo, MaskInObservation, MaskOfTwo, SeveralWithMasks)},
    "time limit": wrapped(lambda env: wrappers.TimeLimit(env, 7)),
    "statistics of episodes": wrapped(wrappers.RecordEpisodeStatistics),
    "stacked": wrapped(lambda env: wrappers.FrameStackObservation(env, 3)),
    "sticky": wrapped(lambda env: wrappers.StickyAction(env, 0.25)),
    "order": wrapped(wrappers.OrderEnforcing),
    "checked": wrapped(wrappers.PassiveEnvChecker),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_environment_is_accused_of_nothing(name, monkeypatch):
    monkeypatch.setattr("etude.envs.check.SECONDS", 1.0)
    found = [finding for finding in check_environment(RIGHT[name]) if finding.kind == "mistake"]
    assert found == []


def test_masked_actions_that_start_elsewhere_are_the_allowed_ones():
    class Started(Forbids):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": self.mask()}

        def step(self, action):
            return *super().step(action)[:4], {"action_mask": self.mask()}

    assert [finding.name for finding in check_environment(Started)] == ["action start"]


@pytest.mark.parametrize(("mask", "words"), [(np.zeros(5), "allows no action at all"), (np.ones(3), r"shape \(3,\)")])
def test_a_mask_that_cannot_be_used_is_named(mask, words):
    class Wrong(Good):
        action_space = Discrete(5)

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": mask}

        def step(self, action):
            return *super().step(action)[:4], {"action_mask": mask}

    (finding,) = check_environment(Wrong)
    assert finding.name == "mask"
    assert re.search(words, finding.message)


def test_arguments_that_a_callable_needs_are_asked_for():
    class Sized(Good):
        def __init__(self, size, *, speed, render_mode=None):
            super().__init__(render_mode)

    (finding,) = check_environment(Sized)
    assert finding.name == "making"
    assert "needs arguments" in finding.message
    assert "'size'" in finding.message
    assert "env_args=" in finding.message
    assert "lambda: Sized(...)" in finding.message
    assert "registry.py" not in finding.message


def test_what_a_constructor_raises_is_named_with_its_line():
    class Broken(Good):
        def __init__(self, render_mode=None):
            raise OSError("no such map")

    (finding,) = check_environment(Broken)
    assert finding.name == "making"
    assert "OSError: no such map" in finding.message
    assert "test_right_environments.py:" in finding.message


class Curriculum(Good):
    """Begins farther out from its fifth episode on."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        self.state += np.float32(0.25) * (self.episodes > 4)
        return self.observe(), {}


class SeedsAll(Good):
    """Seeds the generator that all share, and draws from it: it repeats itself as long as it is alone."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        np.random.seed(seed)
        return self.observe(), {}

    def step(self, action):
        self.state += np.float32(0.1 * np.random.rand())
        return super().step(action)


LASTING = [
    (Curriculum, "history", "from episode to episode, such as a curriculum"),
    (wrapped(wrappers.NormalizeObservation), "history", "NormalizeObservation.*normalize_observation=True"),
    (wrapped(wrappers.NormalizeReward), "history", "NormalizeReward.*normalize_reward=True"),
    (SeedsAll, "global generator", "numpy.random.*self.np_random"),
]


@pytest.mark.parametrize(("env", "name", "words"), LASTING)
def test_what_lasts_from_episode_to_episode_is_a_note(env, name, words):

    findings = [finding for finding in check_environment(env) if finding.name not in ("bounds", "dtype")]
    assert [(finding.name, finding.kind) for finding in findings] == [(name, "note")]
    assert re.search(words, findings[0].message)


def test_a_close_that_raises_or_hangs_is_a_mistake(monkeypatch):

    monkeypatch.setattr("etude.envs.faults.SECONDS", 0.2)

    class Raises(Good):
        def close(self):
            raise OSError("the port is gone")

    class Hangs(Good):
        def close(self):
            threading.Event().wait(1)

    for env, words in ((Raises, "OSError: the port is gone"), (Hangs, "did not return within 0.2 s")):
        (finding,) = [finding for finding in check_environment(env) if finding.kind == "mistake"]
        assert finding.name == "close"
        assert words in finding.message
        assert "test_right_environments.py:" in finding.message
