"""The deep sea: one path leads to the reward."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from etude.base.errors import ConfigError
from etude.examples.deep_sea import DeepSea


def played(env, choose):
    """The return, the length and the columns of an episode; choose: from row and column to whether to move right."""
    observation, _ = env.reset()
    total, columns = 0.0, []
    for row in range(env.size):
        cell = int(observation.argmax())
        assert observation.sum() == 1 and cell // env.size == row
        columns.append(cell % env.size)
        right = int(env._right[row, columns[-1]])
        observation, reward, terminated, truncated, _ = env.step(right if choose(row, columns[-1]) else 1 - right)
        total += reward
        assert terminated == (row == env.size - 1) and not truncated
    assert not observation.any()
    return total, columns


def test_it_is_an_environment():
    check_env(DeepSea(4), skip_render_check=True)


def test_moving_right_at_every_step_finds_the_reward_and_nothing_else_does():
    env = DeepSea(6)
    total, columns = played(env, lambda row, column: True)
    assert total == pytest.approx(0.99) and columns == list(range(6))
    for wrong in range(6):
        total, _ = played(env, lambda row, column, wrong=wrong: row != wrong)
        assert total == pytest.approx(-0.01 * 5 / 6)
    assert played(env, lambda row, column: False) == (0.0, [0] * 6)


def test_actions_are_mapped_by_a_seed():
    one, same, other = DeepSea(8), DeepSea(8), DeepSea(8, mapping_seed=1)
    assert (one._right == same._right).all() and (one._right != other._right).any()


def test_it_draws_the_diver():
    env = DeepSea(4, render_mode="rgb_array")
    env.reset()
    frame = env.render()
    assert frame.shape == (40, 40, 3) and frame.dtype == np.uint8 and (frame[0, 0] == (40, 80, 200)).all()
    with pytest.raises(ConfigError, match="render_mode"):
        DeepSea(render_mode="human")
    with pytest.raises(ConfigError, match="size = 1"):
        DeepSea(1)
