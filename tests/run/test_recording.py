"""Playing an environment into a dataset, and taking the episodes that a run has collected."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude import offline
from etude.base.errors import ConfigError, SpaceError
from etude.explore import EpsilonGreedy
from etude.training.recording import record, replayed


class Counted(gym.Env):
    """Episodes of three steps, of which the first observation is 0; rewards are the actions. Legal actions: 1 and 2."""

    observation_space = gym.spaces.Box(0, 3, (1,), np.float64)
    action_space = gym.spaces.Discrete(3, start=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([0.0]), {"action_mask": np.array([0, 1, 1])}

    def step(self, action):
        self.time += 1
        return np.array([float(self.time)]), float(action), self.time == 3, False, {"action_mask": np.array([0, 1, 1])}


def test_random_actions_are_legal_ones_of_the_environment_each_alike(tmp_path):
    found = record(Counted, 200, seed=3)
    assert len(found.episodes) == 200 and all(episode.terminated for episode in found.episodes)
    actions = np.concatenate([episode.action for episode in found.episodes])
    assert set(actions.tolist()) == {1, 2} and 240 < (actions == 1).sum() < 360
    for episode in found.episodes[:5]:
        assert episode.observation["observation"].tolist() == [[0], [1], [2], [3]]
        assert episode.reward.tolist() == (episode.action + 4).tolist()
        np.testing.assert_allclose(episode.extras["log_prob"], np.log(0.5), rtol=1e-6)
    offline.write(tmp_path / "counted.parquet", found)
    again = offline.read(tmp_path / "counted.parquet")
    assert again.source == found.source and again.source.action == Counted.action_space
    assert [e.action.tolist() for e in again.episodes] == [e.action.tolist() for e in found.episodes]


def test_random_actions_of_a_box_fill_it_and_know_their_density():
    found = record("Pendulum-v1", 2)
    actions = np.concatenate([episode.action for episode in found.episodes])
    assert actions.shape == (400, 1) and actions.min() < -0.95 and actions.max() > 0.95 and abs(actions.mean()) < 0.15
    np.testing.assert_allclose(found.episodes[0].extras["log_prob"], np.log(0.5), rtol=1e-6)
    assert found.environment == "Pendulum-v1" and found.source.action.high.tolist() == [2]
    assert all(episode.truncated and len(episode.observation) == 201 for episode in found.episodes)


def test_a_trained_agent_is_played_and_the_same_seed_plays_the_same():
    with etude.Run("dqn", "CartPole-v1", config=etude.algorithms.DQNConfig(network=etude.Mlp((8,)))) as run:
        one, other = (record("CartPole-v1", 3, run.actor(), EpsilonGreedy(0.5), seed=7) for _ in range(2))
    assert [e.reward.sum() for e in one.episodes] == [e.reward.sum() for e in other.episodes]
    assert one.episodes[0].observation.tobytes() == other.episodes[0].observation.tobytes()


def test_the_replay_of_a_run_becomes_episodes_with_their_true_ends():
    config = etude.algorithms.DQNConfig(network=etude.Mlp((8,)), buffer_size=200, learning_starts=10_000)
    with etude.Run("dqn", "CartPole-v1", config=config, environments=2, seed=1) as run:
        run.train(352)
        found = replayed(run)
    assert len(found) == 200
    assert sum(not episode.terminated for episode in found.episodes) == 2  # one is open in each environment
    for episode in found.episodes:
        outside = np.abs(episode.observation[:, [0, 2]]) > [2.4, 12 * 2 * np.pi / 360]
        assert outside[-1].any() == episode.terminated and not outside[:-1].any()


@pytest.mark.parametrize("given", [{"episodes": 0}, {"episodes": 1, "explorer": EpsilonGreedy(0.1)}])
def test_what_cannot_be_recorded_is_refused(given):
    with pytest.raises(ConfigError, match="record: "):
        record("CartPole-v1", **given)


def test_an_environment_with_arguments_and_stacked_frames_is_recorded_and_evaluated_as_a_run_makes_it():
    stacked = etude.Environment("CartPole-v1", frame_stack=2)
    with etude.Run("dqn", stacked, seed=1, engine="torch") as run:
        recorded = [record(env, 2, run=run) for env in (stacked, run.environment, "CartPole-v1")]
        assert len({tuple(data.returns) for data in recorded}) == 1
        assert recorded[0].episodes[0].observation.shape[1:] == (2, 4)
        assert run.evaluate(2, env=stacked).returns == run.evaluate(2).returns
        for call in (record, lambda env, count, run: run.evaluate(count, env=env)):
            with pytest.raises(SpaceError, match="of the same spaces"):
                call(etude.Environment("CartPole-v1", frame_stack=3), 2, run=run)
    fixed = etude.Environment("FrozenLake-v1", args={"is_slippery": False})
    assert record(fixed, 1).source == record("FrozenLake-v1", 1).source


def test_games_are_recorded_as_a_run_preprocesses_them():
    pytest.importorskip("ale_py")
    env = etude.Environment("ALE/Pong-v5", args={"max_num_frames_per_episode": 200})
    assert record(env, 1).source.observation.shape == (4, 84, 84)


class Endless(gym.Env):
    """Ends after 300 steps, which is long where 100 are."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == 300, False, {}


def test_who_waits_for_the_end_of_a_long_episode_is_told_once(monkeypatch):
    monkeypatch.setattr("etude.rollout.fragments.LONG", 100)
    with pytest.warns(UserWarning, match="has not ended in .*TimeLimit") as told:
        assert record(Endless, 1).returns == [300]
    assert len(told) == 1
    run = etude.Run("reinforce", Endless, environments=1, workers=1, engine="torch")
    with run, pytest.warns(UserWarning, match="has not ended in .*TimeLimit"):
        run.train(300)
