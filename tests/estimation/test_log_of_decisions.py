"""A log of decisions with their propensities: estimates are IPS and SNIPS, as worked out by hand."""

import gymnasium as gym
import numpy as np
import pyarrow
import pytest

import etude
from etude.base.spaces import Spaces

NAMES = {"age": "observations", "visits": "observations", "offer": "actions", "paid": "rewards", "p": "propensities"}


class Offers(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


def test_estimates_from_a_log_of_offers_are_those_by_hand():
    rng = np.random.default_rng(0)
    seen, offer = rng.random((200, 2), np.float32), rng.integers(0, 3, 200)
    table = {"age": seen[:, 0], "visits": seen[:, 1], "offer": offer, "paid": rng.random(200) * offer,
             "p": rng.uniform(0.1, 0.9, 200)}  # fmt: skip
    spaces = Spaces(Offers.observation_space, Offers.action_space)
    log = etude.offline.read(pyarrow.table(table), spaces, columns=NAMES, max_episode_steps=1)
    with etude.Run("bc", Offers, data=log, engine="torch", seed=1) as policy:
        policy.train(20)
        found = etude.estimate(policy, log, ["is", "wis"], explorer=etude.explore.Sample())
        logits = np.asarray(policy.actor().act(seen).logits, np.float64)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    weight = chances[np.arange(200), offer] / table["p"]
    assert found["is"].value == pytest.approx(np.mean(weight * table["paid"]), rel=1e-5)
    assert found["wis"].value == pytest.approx(np.sum(weight * table["paid"]) / weight.sum(), rel=1e-5)
    assert found.behaviour == pytest.approx(table["paid"].mean(), rel=1e-5)
