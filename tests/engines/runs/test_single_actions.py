"""`run.act` where NumPy acts, and where the engine itself does."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from etude import Conv, Mlp, Run
from etude.algorithms import DQNConfig


class Picture(gym.Env):
    """Noise to look at."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(4, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self._see(), float(action), False, False, {}

    def _see(self):
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)


class Vector(Picture):
    """The same, smaller."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float64)

    def _see(self):
        return self.np_random.random(3)


@pytest.mark.parametrize(("env", "network"), [(Vector, Mlp((8,))), (Picture, Conv(((4, 8, 4),), (8,)))])
def test_the_action_is_the_best_one_of_the_present_weights(engine_name, env, network):
    config = DQNConfig(network=network, learning_starts=16, train_every=16, batch_size=8, learning_rate=0.1)
    with Run("dqn", env, config=config, engine=engine_name, seed=3) as run:
        seen = [env().reset(seed=seed)[0] for seed in range(8)]
        for _ in range(2):
            values = run.engine.act(np.stack(seen).astype(run.engine.spaces.observation.dtype))
            assert [run.act(one) for one in seen] == (2 + values.argmax(1)).tolist()
            run.train(32)
