"""Texts in observations: learned from, in workers, by several agents, in act, and after loading."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from run_makers import PPO_TINY
from several_worlds import Pausing

import etude
from etude import Mlp, Run, cli
from etude.algorithms import PPOConfig
from etude.base.errors import ConfigError
from etude.training.description import Environment


class Ordered(gym.Env):
    """One step, which earns 1 for the action that a text asks for."""

    observation_space = Dict({"order": Text(5), "noise": Box(-1, 1, (1,), np.float32)})
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = int(self.np_random.integers(2))
        return self._see(), {}

    def step(self, action):
        return self._see(), float(action == self.wanted), True, False, {}

    def _see(self):
        return {"order": ("left", "right")[self.wanted], "noise": self.np_random.uniform(-1, 1, 1).astype(np.float32)}


def test_orders_in_words_are_learned_in_workers_as_in_one_process(tmp_path):
    config, found = PPOConfig(network=Mlp((16,)), learning_rate=1e-2, rollout_length=32, minibatch_size=64), []
    for workers in (0, 2):
        with Run("ppo", Ordered, config=config, engine="torch", environments=4, workers=workers, seed=1) as run:
            run.train(512)
            found.append(run.engine.weights())
            run.save(tmp_path / "run.etude")
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
    with etude.load(tmp_path / "run.etude", Ordered) as again:
        seen = {"noise": np.zeros(1, np.float32)}
        assert [again.act({"order": text, **seen}) for text in ("left", "right")] == [0, 1]
        assert again.evaluate(episodes=10).mean == 1


class Spoken(Pausing):
    def observation_space(self, agent):
        return Text(3, min_length=2)

    def _of(self, value):
        return super()._of("go" if isinstance(value, np.ndarray) else value)


def test_several_agents_see_texts_and_none_before_the_first():
    with Run("ppo", partial(Spoken, (3,)), config=PPO_TINY, engine="torch", environments=2, seed=1) as run:
        run.train(64)
        assert run.act({"ann": "go"}) in ({"ann": 0}, {"ann": 1})


def test_entries_are_left_out_by_name_also_after_loading(tmp_path):
    folder = tmp_path / "run"
    small = ["--steps", "64", "--set.rollout-length", "16", "--set.minibatch-size", "16", "--evaluate-every", "0", "-q"]
    env = "test_observations_of_texts:Ordered"
    assert cli.main(["train", "ppo", env, *small, "--drop", "order", "--run-dir", str(folder)]) == 0
    with etude.load(folder) as run:
        assert list(run.engine.spaces.observation) == ["noise"] and run.description()["wrappers"] == ["drop:order"]
        assert run.act({"order": "left", "noise": np.zeros(1, np.float32)}) in (0, 1)
    for wrapper, env in (("drop:mission", Ordered), ("drop:order", "CartPole-v1"), ("drop:a", "mpe2:simple_spread_v3")):
        with pytest.raises(ConfigError, match=f"{wrapper} leaves an entry out of Dict observations"):
            Run("ppo", Environment(env, wrappers=[wrapper]))
    with pytest.raises(ConfigError, match="several entries"):
        Run("ppo", Environment(Ordered, wrappers=["drop:order", "drop:noise"]))
