"""CartPole whose velocities are hidden is CartPole otherwise."""

import gymnasium
import numpy as np

from etude.envs import check_environment
from etude.examples.cart_pole import WithoutVelocities


def test_nothing_is_wrong_with_it():
    assert check_environment("etude.examples.cart_pole:WithoutVelocities") == []


def test_it_goes_on_as_cart_pole_does_and_shows_the_positions_alone():
    hidden, whole = WithoutVelocities(), gymnasium.make("CartPole-v1")
    seen, _ = hidden.reset(seed=3)
    all_of_it, _ = whole.reset(seed=3)
    rng, ended = np.random.default_rng(0), False
    while not ended:
        assert seen.shape == (2,) and seen.dtype == np.float32 and hidden.observation_space.contains(seen)
        np.testing.assert_array_equal(seen, [all_of_it[0], all_of_it[2]])
        action = int(rng.integers(2))
        seen, reward, ended, truncated, _ = hidden.step(action)
        all_of_it, *rest, _ = whole.step(action)
        assert [reward, ended, truncated] == rest
    assert hidden.spec.max_episode_steps == 500
    hidden.close(), whole.close()


def test_it_is_drawn_as_cart_pole_is():
    env = WithoutVelocities(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (400, 600, 3)
    env.close()
