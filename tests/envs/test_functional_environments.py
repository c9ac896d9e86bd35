"""Environments as pure functions: Gymnasium's numbers, in NumPy and in JAX."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from etude.base.errors import ConfigError
from etude.envs import make_environment
from etude.envs.functional import FUNCTIONAL, AsGymnasium, CartPole

EVERY = pytest.mark.parametrize("name", FUNCTIONAL)


@EVERY
def test_every_step_is_that_of_gymnasium_and_so_is_the_same_step_in_jax(name):
    own = FUNCTIONAL[name]()
    mine, theirs = AsGymnasium(own), gym.make(own.gymnasium_id)
    in_jax = jax.jit(own.step)
    observation, _ = mine.reset(seed=3)
    np.testing.assert_array_equal(observation, theirs.reset(seed=3)[0])
    theirs.action_space.seed(0)
    ended, steps = False, 0
    while not ended:
        action, state = theirs.action_space.sample(), mine._state
        found, reward, terminated, truncated, _ = mine.step(action)
        expected, due, *ends, _ = theirs.step(action)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found.dtype == np.float32 and (terminated, truncated) == tuple(ends)
        assert reward == pytest.approx(due, abs=1e-6)
        seen, _, reward, *ends, _ = in_jax(jax.random.key(0), state, action, own.params)
        np.testing.assert_allclose(seen, expected, atol=2e-5)
        assert float(reward) == pytest.approx(due, abs=2e-5) and tuple(map(bool, ends)) == (terminated, truncated)
        ended, steps = terminated or truncated, steps + 1
    assert steps > 9


@EVERY
def test_it_is_an_environment_of_gymnasium_which_renders(name):
    check_env(AsGymnasium(FUNCTIONAL[name]()), skip_render_check=True)
    env = make_environment(name, render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.spaces.action.sample())
    assert env.render().ndim == 3
    env.close()


def test_parameters_are_arguments():
    assert CartPole(gravity=1.6).params.gravity == 1.6
    with pytest.raises(ConfigError, match="gravitation"):
        import etude

        etude.Run("ppo", "functional:CartPole-v1", env_args={"gravitation": 1.6})
