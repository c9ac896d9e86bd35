"""What on-policy runs learn from a rollout, in minibatches of any size."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

from etude import Mlp, Run
from etude.algorithms import A2CConfig, APPOConfig, PPOConfig

PPO = PPOConfig(network=Mlp((4,)), rollout_length=32, minibatch_size=16, epochs=1, learning_rate=1e-2)


class Drifting(gym.Env):
    """Observations and rewards grow within an episode. Episodes of 1 to 6 steps, every second of them stopped by a
    clock."""

    observation_space, action_space = gym.spaces.Box(-1e3, 1e3, (2,), np.float32), gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.clock = int(self.np_random.integers(1, 7)), bool(self.np_random.integers(2))
        self.drift = self.np_random.uniform(0, 5)
        return self.observation(), {}

    def step(self, action):
        self.left, self.drift = self.left - 1, self.drift + 1
        over = self.left == 0
        return self.observation(), self.drift * (action - 1.0), over and not self.clock, over and self.clock, {}

    def observation(self):
        return np.float32([self.drift + self.np_random.normal(), self.np_random.normal()])


class Watched:
    """Learns as a run does, and keeps the batches [k, B, ...] that it learned from."""

    def __init__(self, run):
        self._inner, self.batches = run.learner.gradients, []
        run.learner.gradients = self

    def learn(self, batches, hyper, done):
        self.batches.append(batches)
        return self._inner.learn(batches, hyper, done)


@pytest.mark.parametrize("size", [64, 8, 2, 1])
def test_the_moments_of_returns_are_those_of_the_rollouts_whatever_the_size_of_minibatches(size, engine_name):
    config = dataclasses.replace(PPO, rollout_length=16, minibatch_size=size, normalize_value=True, learning_rate=0.0)
    with Run("ppo", Drifting, config=config, environments=4, engine=engine_name, seed=1) as run:
        watched = Watched(run)
        run.train(3 * 64)
        mean, deviation, phases = run.engine.weights()["value_normaliser.moments"]
    returns = np.concatenate([batches.extras["return"].reshape(-1) for batches in watched.batches]).astype(np.float64)
    assert len(returns) == 3 * 64 and returns.std() > 0.1
    assert (mean, deviation, phases) == pytest.approx((returns.mean(), returns.std(), 3), rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "config", "environments"),
    [
        ("ppo", dataclasses.replace(PPO, minibatch_size=1), 2),
        ("a2c", A2CConfig(network=Mlp((4,)), normalize_advantage=True, rollout_length=4, minibatch_size=1), 2),
        ("appo", APPOConfig(network=Mlp((4,)), rollout_length=1, minibatch_size=1), 1),
    ],
)
def test_the_advantage_of_a_minibatch_of_one_step_moves_the_policy(algorithm, config, environments, engine_name):
    config = dataclasses.replace(config, entropy_coefficient=0.0)
    with Run(algorithm, Drifting, config=config, environments=environments, engine=engine_name, seed=1) as run:
        before = run.engine.weights()
        run.train(64)
        after = run.engine.weights()
    policy = [name for name in before if name.startswith("model.policy")]
    assert policy and all(np.abs(after[name] - before[name]).max() > 1e-5 for name in policy)
