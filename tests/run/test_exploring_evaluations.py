"""Evaluations and recordings that explore as training does."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Counted

import etude
from etude.base.errors import ConfigError
from etude.explore import EpsilonGreedy


class Paying(Counted):
    """Pays 1 for action 1 and nothing for action 0."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(action), *rest


def test_evaluations_explore_with_the_explorer_of_the_run_at_its_present_step():
    explorer = EpsilonGreedy(etude.Linear(1.0, 0.0), total=40)
    with tiny(Paying, explorer=explorer) as run:
        best = run.evaluate(10).returns
        assert set(best) <= {0.0, 10.0}
        random = run.evaluate(10, explore=True).returns
        assert 3 < np.mean(random) < 7, "epsilon is 1"
        assert random == run.evaluate(10, explore=True).returns
        run.train(40)
        assert run.evaluate(10, explore=True).returns == run.evaluate(10).returns, "epsilon is 0"


def test_exploring_changes_no_number_of_a_run():
    with tiny(Paying) as one, tiny(Paying) as other:
        one.train(80)
        other.train(40)
        other.evaluate(3, explore=True)
        etude.record(Paying, 2, run=other, explore=True)
        other.train(40)
        for name, weight in one.engine.weights().items():
            np.testing.assert_array_equal(weight, other.engine.weights()[name])


def test_noise_in_layers_is_explored_with(engine_name="torch"):
    config = etude.config("rainbow", "CartPole-v1")
    with etude.Run("rainbow", "CartPole-v1", config=config, engine=engine_name) as run:
        run.train(8)
        noisy, still = run.actor(explore=True), run.actor()
        observation = np.ones((1, 4), np.float32)
        assert not np.array_equal(np.asarray(noisy.act(observation)[0]), np.asarray(still.act(observation)[0]))


def test_recordings_explore_with_a_run():
    with tiny(Paying, explorer=EpsilonGreedy(1.0)) as run:
        best = etude.record(Paying, 8, run=run)
        assert {episode.reward.sum() for episode in best.episodes} <= {0.0, 10.0}
        random = etude.record(Paying, 8, run=run, explore=True)
        assert 3 < np.mean([episode.reward.sum() for episode in random.episodes]) < 7
        with pytest.raises(ConfigError, match="a run acts by itself; leave out actor and explorer"):
            etude.record(Paying, 1, run.actor(), run=run)
        with pytest.raises(ConfigError, match="explore=True takes the explorer of a run"):
            etude.record(Paying, 1, run.actor(), explore=True)


def test_runs_on_recorded_data_explore_nothing():
    data = etude.record(Paying, 3)
    with (
        etude.Run("bc", Paying, data=data, engine="torch") as run,
        pytest.raises(ConfigError, match="BC learns from recorded data and explores nothing"),
    ):
        run.evaluate(2, explore=True)


class Narrow(Counted):
    """Takes actions from 2 to 3."""

    action_space = gym.spaces.Box(2, 3, (2,), np.float32)


@pytest.mark.parametrize("algorithm", ["ddpg", "sac", "ppo"])
def test_single_actions_that_explore_stay_in_the_bounds(algorithm):
    with etude.Run(
        algorithm, Narrow, engine="torch", **({"exploration_noise": 5.0} if algorithm == "ddpg" else {})
    ) as run:
        actions = [run.act(np.zeros(2, np.float32), explore=True) for _ in range(50)]
    assert all(Narrow.action_space.contains(action) for action in actions)
    assert len({tuple(action) for action in actions}) > 10
