"""How well the critic predicted the returns that on-policy agents learn from."""

from __future__ import annotations

import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Labelled

import etude
from etude.base.events import Learned
from etude.training.kinds.on_policy import explained_variance


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_it_is_that_of_the_rollout_with_the_values_before_the_phase(algorithm):
    config = None if algorithm == "a2c" else tiny(Labelled, "ppo").agent.config
    with etude.Run(algorithm, Labelled, config=config, environments=4, engine="torch") as run:
        for event in run.steps(256):
            if isinstance(event, Learned):
                estimates = run.learner.replay.view._estimates
                stored = estimates["return"] != 0  # the ring has room for more rows than a rollout
                assert stored.sum() == run.agent.config.rollout_length * 4
                value, target = estimates["value"][stored], estimates["return"][stored]
                expected = 1 - np.var(target - value) / np.var(target)
                assert event.metrics["explained_variance"] == pytest.approx(expected, abs=1e-4)


def test_it_is_1_for_a_perfect_critic_and_0_for_a_constant_one():
    target = np.array([[1.0, 2.0, 4.0]])
    assert explained_variance({"return": target, "value": target}) == {"explained_variance": 1.0}
    assert explained_variance({"return": target, "value": np.ones((1, 3))})["explained_variance"] == pytest.approx(0.0)
    assert explained_variance({"return": np.ones((1, 3)), "value": target}) == {}
    assert explained_variance({"return": target}) == {}


def test_agents_that_wait_for_their_turn_do_not_count():
    extras = {"return": np.array([[1.0, 99.0], [3.0, 5.0]]), "value": np.array([[1.0, 0.0], [3.0, 5.0]])}
    assert explained_variance({**extras, "active": np.array([[1.0, 0.0], [1.0, 1.0]])}) == {"explained_variance": 1.0}
    assert explained_variance({**extras, "active": np.zeros((2, 2))}) == {}
