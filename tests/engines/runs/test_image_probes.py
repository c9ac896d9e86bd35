"""Policies over numbers find what an image asks for: the convolutions of actor and critics reach the loss."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from cases import BOTH, variants_but

import etude
from etude import Conv
from etude.algorithms import CQLConfig, SACConfig, TD3Config
from etude.base.data import Episode
from etude.base.spaces import Box, Spaces
from etude.offline import Dataset

IMAGE = Box(0, 255, (12, 12, 1), np.uint8)
SMALL = {"network": Conv(((4, 4, 4),), (16,)), "learning_rate": 3e-3, "batch_size": 32, "gamma": 0.5}
REPLAYED = {**SMALL, "learning_starts": 100, "train_every": 50, "gradient_steps": 50}
STEPS = {"sac": 600, "td3": 800, "cql": 400}
CONFIGS = {
    "sac": SACConfig(**REPLAYED, temperature=0.01, learn_temperature=False),
    "td3": TD3Config(**REPLAYED, random_steps=100, exploration_noise=0.3),
    "cql": CQLConfig(**SMALL, gradient_steps=50, samples=2, cql_alpha=0.05, temperature=0.01),
}


def shown(side: int) -> np.ndarray:
    """An image whose left half is bright for side -1, its right half for 1."""
    image = np.zeros(IMAGE.shape, np.uint8)
    image[:, slice(6, 12) if side > 0 else slice(0, 6)] = 200
    return image


def reward_of(action: float, side: int) -> float:
    return 1.0 - (action - 0.5 * side) ** 2


class BrightHalf(gym.Env):
    """One step: the best action is 0.5 where the right half of the image is bright, -0.5 where the left half is.

    The best policy gets 1. Any policy that does not see the image gets at most 0.75 on average.
    """

    observation_space = gym.spaces.Box(0, 255, IMAGE.shape, np.uint8)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = 1 if self.np_random.random() < 0.5 else -1
        return shown(self.side), {}

    def step(self, action):
        return shown(self.side), reward_of(float(action[0]), self.side), True, False, {}


def recorded(count: int = 400) -> Dataset:
    """Episodes of uniformly random actions."""
    rng = np.random.default_rng(0)
    episodes = []
    for side in rng.choice([-1, 1], count):
        action = rng.uniform(-1, 1, (1, 1)).astype(np.float32)
        reward = np.float32([reward_of(float(action[0, 0]), side)])
        episodes.append(Episode(np.stack([shown(side)] * 2), action, reward, True, False))
    return Dataset(tuple(episodes), Spaces(IMAGE, Box(-1, 1, (1,), np.float32)))


@pytest.mark.long_but("sac")
@pytest.mark.parametrize("name", variants_but({"sac": BOTH}, CONFIGS))
def test_the_best_action_for_each_image_is_found(name, engine_name):
    data = {"data": recorded()} if name == "cql" else {"environments": 4}
    with etude.Run(name, BrightHalf, config=CONFIGS[name], engine=engine_name, seed=1, **data) as run:
        run.train(STEPS[name])
        assert run.evaluate(episodes=20).mean > 0.9
