"""Rewards and ends of goal environments, as hindsight asks for them."""

import gc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from etude.base.errors import ConfigError, EnvironmentFault
from etude.envs import ConfiguredEnvironment, GoalOutcome
from etude.examples.point import PointWorld
from etude.replay.hindsight import GoalRewards

PLANE = Box(0.0, 5.0, (2,), np.float32)
ACHIEVED = np.array([[1, 1], [1, 2], [3, 3], [0, 0]] * 5, np.float32)
DESIRED = np.array([[1, 1.1], [4, 4], [3, 3], [4, 4]] * 5, np.float32)
REACHED = [True, False, True, False] * 5


class World(gym.Env):
    """An observation of which both goals are the origin."""

    observation_space = Dict({"observation": PLANE, "achieved_goal": PLANE, "desired_goal": PLANE})
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {name: np.zeros(2, np.float32) for name in self.observation_space}, {}


class Maze(World):
    """Ends where the goal is reached, as Gymnasium-Robotics' mazes do: for one pair of goals."""

    closed = 0

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.5)

    def close(self):
        Maze.closed += 1


class Fetch(Maze):
    """No goal ends an episode."""

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return False


class RewardOnly(World):
    """Knows rewards alone."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.float32(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5)


class Halved(gym.Wrapper):
    """Rewards of half the size, of goals too."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.5 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)


@pytest.mark.parametrize(
    ("env", "ends"), [(PointWorld, REACHED), (Maze, REACHED), (Fetch, [False] * 20), (RewardOnly, [False] * 20)]
)
def test_outcomes_of_many_goals_are_those_of_single_pairs(env, ends):
    outcome = GoalOutcome(env)
    rewards, done = GoalRewards(outcome)(ACHIEVED, DESIRED, ())
    assert rewards.tolist() == [0.0 if reached else -1.0 for reached in REACHED]
    assert done.tolist() == ends
    pairs = [outcome(achieved, desired) for achieved, desired in zip(ACHIEVED, DESIRED, strict=True)]
    assert [(float(reward), bool(end)) for reward, end in pairs] == list(zip(rewards.tolist(), ends, strict=True))


def test_rewards_of_a_wrapper_are_those_of_its_own_function():
    rewards, done = GoalRewards(GoalOutcome(ConfiguredEnvironment(Maze, {}, (Halved,))))(ACHIEVED, DESIRED, ())
    assert set(rewards.tolist()) == {0.0, -0.5}
    assert done.tolist() == REACHED


def test_the_environment_is_closed_when_it_is_no_longer_needed():
    outcome, before = GoalOutcome(Maze), Maze.closed
    gc.collect()
    assert Maze.closed == before
    del outcome
    gc.collect()
    assert Maze.closed == before + 1


def test_environments_without_rewards_of_goals_are_refused():
    with pytest.raises(ConfigError, match=r"CartPole-v1 has no compute_reward\(achieved_goal, desired_goal, info\)"):
        GoalOutcome("CartPole-v1")
    with pytest.raises(ConfigError, match="simulator only; hindsight calls compute_reward of a single environment"):
        GoalOutcome(lambda num_envs: None)


class Scaled(RewardOnly):
    """Knows how much a goal is worth once it was reset."""

    def reset(self, *, seed=None, options=None):
        self.worth = 3.0
        return super().reset(seed=seed)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self.worth * super().compute_reward(achieved_goal, desired_goal, info)


class Informed(RewardOnly):
    """Reads what it is not given."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return info["extra"]


def test_a_reward_may_read_what_the_reset_sets():
    rewards, _ = GoalRewards(GoalOutcome(Scaled))(ACHIEVED, DESIRED, ())
    assert rewards.tolist() == [0.0 if reached else -3.0 for reached in REACHED]


def test_a_reward_that_reads_what_hindsight_does_not_have_is_told_with_its_line():
    with pytest.raises(EnvironmentFault, match=r"raised KeyError: 'extra' \(.*goal_outcome.*an empty info: compute"):
        GoalOutcome(Informed)
