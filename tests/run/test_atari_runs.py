"""Atari games by their ids: preprocessed, with stacked frames and clipped rewards, and as they are if asked for."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from run_worlds import Labelled

import etude
from etude import Conv, Mlp, Run
from etude.algorithms import A3CConfig, DQNConfig, ESConfig, GAILConfig
from etude.base.errors import ConfigError, MissingExtra
from etude.envs import ConfiguredEnvironment
from etude.envs.registry import imported_by
from etude.presets import ATARI, ATARI_PREPROCESSING
from etude.training.assembly.described import environment_from
from etude.training.description import OF_ENVIRONMENT, Environment

PONG = "ALE/Pong-v5"
WRAPPERS = ATARI_PREPROCESSING.wrappers
SMALL = {"network": Conv(((4, 8, 8),), (8,)), "learning_starts": 16, "train_every": 8, "batch_size": 4}


class Payday(gym.Env):
    """Pays 10, -10 and 0 in turn, for episodes of six steps."""

    observation_space = gym.spaces.Box(0, 6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        reward = (0.0, 10.0, -10.0)[self.time % 3] + (self.time == 6)
        return np.full(1, self.time, np.float32), reward, self.time == 6, False, {}


def test_a_game_is_preprocessed_unless_wrappers_are_given():
    expected = ConfiguredEnvironment(PONG, {"frameskip": 1}, WRAPPERS, 4)
    assert Environment(PONG).configured() == expected
    assert Environment(f"ale_py:{PONG}", {"mode": 1}, None, 2).configured() == ConfiguredEnvironment(
        f"ale_py:{PONG}", {"frameskip": 1, "mode": 1}, WRAPPERS, 2
    )
    assert Environment(PONG, wrappers=[]).configured() == PONG
    assert Environment("CartPole-v1").configured() == "CartPole-v1"
    with pytest.raises(ConfigError, match="env_args = 3"):
        Environment(PONG, 3).configured()


def test_a_wrapper_that_presets_name_needs_no_trust():
    assert not any(imported_by(name) for name in WRAPPERS)
    assert imported_by("gymnasium.wrappers:TimeLimit")


@pytest.mark.parametrize("name", [PONG, f"ale_py:{PONG}"])
def test_a_missing_emulator_is_one_error_that_names_the_extra(name, monkeypatch):
    for loaded in [module for module in sys.modules if module.split(".")[0] == "ale_py"] or ["ale_py"]:
        monkeypatch.setitem(sys.modules, loaded, None)  # games that an earlier test registered import one of these
    with pytest.raises(MissingExtra, match=r"ALE/Pong-v5' needs an optional .*pip install 'etude\[atari\]'"):
        Run("dqn", name, engine="torch")


def test_missing_image_processing_is_the_same_error(monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'etude\[atari\]'"):
        Run("dqn", PONG, engine="torch")


def test_clipped_rewards_are_learned_from_and_returns_stay_those_of_the_environment():
    with Run("dqn", Payday, engine="torch", network=Mlp((4,)), n_step=1, learning_starts=8, clip_reward=True) as run:
        episodes = [end for event in run.steps(24) for end in getattr(event, "episodes", ())]
        assert [end.total for end in episodes] == [1.0] * 4
        assert run.learner.replay.ring.reward[:6].tolist() == [1.0, -1.0, 0.0, 1.0, -1.0, 1.0]
        assert run.evaluate(2).returns == (1.0, 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DQNConfig(clip_reward=True, actor_priorities=True, priority_exponent=0.6),
        lambda: DQNConfig(clip_reward=True, hindsight="future"),
        lambda: A3CConfig(clip_reward=True),
        lambda: ESConfig(clip_reward=True),
        lambda: GAILConfig(clip_reward=True),
    ],
)
def test_rewards_that_cannot_be_clipped_are_refused(make):
    with pytest.raises(ConfigError, match="clip_reward.*[Ll]eave (it|them|one of them) off"):
        make()


def test_a_run_on_a_game_is_saved_loaded_and_evaluated_as_it_was_trained(tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    path = tmp_path / "run.etude"
    with Run("dqn", PONG, config=DQNConfig(**SMALL, buffer_size=1_000, clip_reward=True), engine="torch") as run:
        run.train(32)
        assert run.engine.spaces.observation.shape == (4, 84, 84)
        ring = run.learner.replay.ring
        assert ring.nbytes / ring.capacity < 8_000  # bytes a transition; 28,224 of pixels alone in whole stacks
        first = gym.make(PONG, frameskip=1, disable_env_checker=True)
        first = gym.wrappers.AtariPreprocessing(first).reset(seed=0)[0]
        best = int(run.engine.act(np.stack([first] * 4)[None]).argmax())
        assert run.act(first, first=True) == best
        run.save(path)
    again = etude.load(path)
    assert again.environment == run.environment and again.description()["frame_stack"] == 4
    assert again.evaluate(1, max_steps=20).lengths == (20,)
    again.train(8)
    again.close()


def test_a_game_has_the_preset_of_its_family():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    with Run("dqn", "ALE/Breakout-v5", engine="torch", buffer_size=1_000) as run:
        assert run.agent.config == etude.config("dqn", "ALE/Breakout-v5", buffer_size=1_000)
        assert run.agent.config.clip_reward and run.description()["has_preset"]
    assert etude.presets.PRESETS["ppo"][ATARI].environments == 8


def test_a_run_that_was_saved_before_presets_wrapped_environments_gains_no_wrapper(tmp_path):
    with Run("dqn", Labelled, engine="torch", network=Mlp((4,))) as run:
        described = {**run.description(), "environment": PONG, "environment_is_named": True}
    for name in ("wrappers", "wrappers_are_named", "environment_args", "frame_stack"):
        described.pop(name)
    env, made_with = environment_from(described, None, {})
    assert Environment(env, *(made_with[name] for name in OF_ENVIRONMENT)).configured() == PONG
