"""Studies that take little time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from etude import Mlp
from etude.algorithms import PPOConfig
from etude.tuning import Study

TINY = PPOConfig(network=Mlp((4,)), rollout_length=8, minibatch_size=32, epochs=1, learning_rate=0.01)
RATES = {"learning_rate": [0.03, 0.01, 0.003]}


class Pointer(gym.Env):
    """Its reward is 1 where the action is the sign of the observation; eight steps long."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action):
        reward, self.time = float(action == (self.sign > 0)), self.time + 1
        return self._observation(), reward, False, self.time == 8, {}

    def _observation(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign], np.float32)


def tiny_study(folder: Path, space: Any = None, env: Any = Pointer, **more: Any) -> Study:
    """Trials of 128 steps, evaluated every 32."""
    given = {
        "config": TINY, "steps": 128, "evaluate_every": 32, "evaluate_episodes": 2, "engine": "torch",
        "environments": 2, "save_every": 32,
    }  # fmt: skip
    return Study("ppo", env, RATES if space is None else space, folder=folder, **{**given, **more})


def curves(study: Study) -> dict[int, list[Any]]:
    """The scores of every trial."""
    return {trial.number: trial.scores for trial in study.trials}
