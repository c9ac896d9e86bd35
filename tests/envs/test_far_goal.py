"""The grid with a goal as far away as the task says."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from etude.examples.far_goal import FarGoal


def test_it_keeps_the_contract_of_gymnasium():
    check_env(FarGoal(3), skip_render_check=True)


@pytest.mark.parametrize("distance", [1, 7, 60])
def test_the_goal_is_as_far_away_as_the_task_says_and_is_reached_in_as_many_steps(distance):
    env = FarGoal()
    env.set_task(distance)
    for seed in range(20):
        env.reset(seed=seed)
        rewards, terminated, truncated = [], False, False
        while not (terminated or truncated):
            east, north = env.offset
            _, reward, terminated, truncated, _ = env.step((0 if east > 0 else 1) if east else (2 if north > 0 else 3))
            rewards.append(reward)
        assert rewards == [0.0] * (distance - 1) + [1.0]
        assert terminated


def test_who_stays_where_it_is_runs_out_of_time():
    env = FarGoal(8)
    env.reset(seed=1)
    flags = [env.step(step % 2)[2:4] for step in range(12)]
    assert flags == [(False, False)] * 11 + [(False, True)]


@pytest.mark.parametrize("wrong", [0, 1.5, "far", True])
def test_a_task_that_is_no_distance_is_refused(wrong):
    with pytest.raises(ValueError, match="the task is .*; expected the distance of the goal"):
        FarGoal().set_task(wrong)


def test_directions_differ():
    env = FarGoal(5)
    assert len({tuple(np.sign(env.reset(seed=seed)[0][:2])) for seed in range(50)}) >= 4
