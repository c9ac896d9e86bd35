"""The world of points and goals of the examples."""

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.envs import check_environment
from etude.examples.point import PointWorld


def walk(env, steps, action):
    return [env.step(np.array(action, np.float32)) for _ in range(steps)]


def test_nothing_is_found_wrong_with_it():
    assert check_environment("etude.examples.point:PointWorld") == []


def test_it_starts_at_the_origin_with_a_goal_near_four_and_four():
    env, goals = PointWorld(), []
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        assert observation["observation"].tolist() == observation["achieved_goal"].tolist() == [0, 0]
        goals.append(observation["desired_goal"])
    assert np.min(goals) >= 3.5
    assert np.max(goals) <= 4.5
    assert np.allclose(np.mean(goals, 0), 4, atol=0.06)  # three standard errors of 300 are 0.05
    assert np.allclose(np.std(goals, 0), 1 / np.sqrt(12), atol=0.03)


def test_steps_are_clipped_to_one_and_the_position_to_the_plane():
    env = PointWorld()
    env.reset(seed=0)
    assert env.step(np.array([7, 0.5]))[0]["observation"].tolist() == [1, 0.5]
    assert env.step(np.array([-3, -9]))[0]["observation"].tolist() == [0, 0]
    assert walk(env, 9, (0, 1))[-1][0]["achieved_goal"].tolist() == [0, 5]


def test_the_goal_ends_the_episode_with_a_reward_of_zero():
    env = PointWorld()
    observation, _ = env.reset(seed=1)
    goal, rewards = observation["desired_goal"], []
    for _ in range(10):
        observation, reward, terminated, truncated, _ = env.step(goal - observation["observation"])
        rewards.append(reward)
        if terminated:
            break
    assert rewards == [-1, -1, -1, -1, 0] if goal.max() > 4 else [-1, -1, -1, 0]
    assert (terminated, truncated) == (True, False)


def test_fifty_steps_are_all_the_time_there_is():
    env = PointWorld()
    env.reset(seed=0)
    flags = [(terminated, truncated) for _, _, terminated, truncated, _ in walk(env, 50, (0, 0))]
    assert flags == [(False, False)] * 49 + [(False, True)]


def test_rewards_of_any_number_of_goals_are_those_of_the_steps():
    achieved = np.array([[[1, 1], [1, 1.1]], [[1, 1.2], [3, 1]]], np.float32)
    reward = PointWorld.compute_reward(achieved, np.ones(2, np.float32), {})
    assert (reward.dtype, reward.tolist()) == (np.float32, [[0, 0], [-1, -1]])
    assert PointWorld.reached(achieved, np.ones(2)).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(("x", "y", "row", "column"), [(0, 0, 159, 0), (5, 5, 0, 159), (5, 0, 159, 159)])
def test_a_frame_shows_the_point_where_it_is_and_the_goal(x, y, row, column):
    env = PointWorld(render_mode="rgb_array")
    env.reset(seed=0)
    walk(env, 5, (x / 5, y / 5))
    frame = env.render()
    assert (frame.shape, frame.dtype) == ((160, 160, 3), np.uint8)
    assert frame[row, column].tolist() == [40, 80, 200]
    goal = env._goal
    assert frame[int(160 - goal[1] * 32), int(goal[0] * 32)].tolist() == [60, 170, 80]
    assert frame[80, 80].tolist() == [255, 255, 255]
    assert PointWorld().render() is None


def test_a_window_is_refused_and_frames_are_offered():
    with pytest.raises(ConfigError, match="render_mode='rgb_array', and no window; got 'human'"):
        PointWorld("human")
