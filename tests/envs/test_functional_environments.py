"""Environments as pure functions: Gymnasium's numbers, in NumPy and in JAX."""

from __future__ import annotations

import inspect
import re

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import etude
from etude.algorithms import PPOConfig
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.spaces import Box, Discrete
from etude.envs import make_environment
from etude.envs.check import check_environment
from etude.envs.functional import (
    FUNCTIONAL,
    AsGymnasium,
    Bandit,
    Breakout,
    CartPole,
    FourRooms,
    FunctionalEnvironment,
    Grid,
    check_functional,
)

EVERY = pytest.mark.parametrize("name", FUNCTIONAL)


class Plain(FunctionalEnvironment):
    """Two numbers that stay as they are."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, key, params):
        return jnp.zeros(2), {"at": jnp.zeros(2), "time": 0}

    def step(self, key, state, action, params):
        return state["at"], {**state, "time": state["time"] + 1}, 1.0, False, state["time"] >= 9, {}


class Longer(Plain):
    def reset(self, key, params):
        return jnp.zeros(3), {"at": jnp.zeros(3), "time": 0}


class Grows(Plain):
    def step(self, key, state, action, params):
        return state["at"], {**state, "at": jnp.zeros(3)}, 1.0, False, False, {}


class Rounds(Plain):
    def step(self, key, state, action, params):
        return state["at"], {**state, "time": state["time"] + 0.5}, 1.0, False, False, {}


class Forks(Plain):
    def step(self, key, state, action, params):
        return state["at"], state, 1.0 if action == 1 else 0.0, False, False, {}


class Old(Plain):
    def step(self, key, state, action, params):
        return state["at"], state, 1.0, False, {}


class Divides(Plain):
    def step(self, key, state, action, params):
        return state["at"] / state["time"], {**state, "time": state["time"] + 1}, 1.0, False, False, {}


class Pays(Plain):
    def step(self, key, state, action, params):
        return state["at"], {**state, "time": state["time"] + 1}, 1.0 / (state["time"] - 3), False, False, {}


MISTAKES = [
    (Longer, "observation is (3,) in reset and (2,) in observation_space"),
    (Grows, "the state['at'] is ((2,), dtype('float32')) in reset and ((3,), dtype('float32')) in step"),
    (Rounds, "the state['time'] is ((), dtype('int32')) in reset and ((), dtype('float32')) in step"),
    (Forks, "Forks: step cannot be compiled: it raised TracerBoolConversionError"),
    (Old, "step returned 5; expected (observation, state, reward"),
    (Divides, "the observation of environment 0 is not finite"),
    (Pays, "the reward of environment 0 is not finite at time step 3"),
]


def compiled(kind):
    config = PPOConfig(rollout_length=8, minibatch_size=16, epochs=1)
    execution = etude.Execution(vectorization="compiled")
    etude.Run("ppo", kind, config=config, engine="jax", environments=2, execution=execution).train(16)


@pytest.mark.parametrize(("kind", "said"), MISTAKES)
def test_a_mistake_ends_in_one_error_with_its_line(kind, said):
    with pytest.raises(EnvironmentFault) as found:
        compiled(kind)
    text, (lines, first) = str(found.value), inspect.getsourcelines(kind)
    at = {int(line) for line in re.findall(rf"{re.escape(__file__)}:(\d+)", text)}
    assert said in text and kind.__name__ in text and at and at <= set(range(first, first + len(lines)))
    if kind not in (Divides, Pays):
        [mistake] = [each for each in check_environment(kind) if kind.__name__ in each.message]
        assert said in mistake.message


CLASSIC = pytest.mark.parametrize("name", [name for name, kind in FUNCTIONAL.items() if kind.gymnasium_id])


@CLASSIC
def test_every_step_is_that_of_gymnasium(name):
    own = FUNCTIONAL[name]()
    mine, theirs = AsGymnasium(own), gym.make(own.gymnasium_id)
    assert mine.observation_space == theirs.observation_space and mine.action_space == theirs.action_space
    observation, _ = mine.reset(seed=3)
    np.testing.assert_array_equal(observation, theirs.reset(seed=3)[0])
    theirs.action_space.seed(0)
    ended, steps = False, 0
    while not ended:
        action = theirs.action_space.sample()
        found, reward, terminated, truncated, _ = mine.step(action)
        expected, due, *ends, _ = theirs.step(action)
        # Gymnasium's continuous car has a state of float32 whose cosine it takes in float64.
        np.testing.assert_allclose(found, expected, atol=2e-5 if "Continuous" in name else 1e-6)
        assert found.dtype == np.float32 and (terminated, truncated) == tuple(ends)
        assert reward == pytest.approx(due, abs=1e-6)
        ended, steps = terminated or truncated, steps + 1
    assert steps > 9


@CLASSIC
def test_the_ends_and_the_bounds_are_those_of_gymnasium(name):
    own, theirs = FUNCTIONAL[name](), gym.make(FUNCTIONAL[name].gymnasium_id).unwrapped
    theirs.reset()
    rng, ends = np.random.default_rng(0), 0
    far = {
        "CartPole-v1": (2.5, 3.0, 0.25, 3.0), "Pendulum-v1": (9.0, 8.0), "Acrobot-v1": (3.0, 3.0, 12.0, 28.0),
    }.get(own.gymnasium_id, (0.9, 0.07))  # fmt: skip
    middle = np.array([-0.3, 0.0] if "Car-" in own.gymnasium_id or "Continuous" in name else 0.0)
    for _ in range(400):
        state = middle + rng.uniform(-np.array(far), far)
        theirs.state, theirs.steps_beyond_terminated = state.copy(), None
        action = own.action_space.sample()
        found, (after, _), reward, terminated, _, _ = own.step(rng, (state, 0), action, own.params)
        expected, due, ended, *_ = theirs.step(action)
        np.testing.assert_allclose(found, expected, atol=2e-6)
        np.testing.assert_allclose(after, theirs.state, atol=2e-6)
        assert bool(terminated) == ended and float(reward) == pytest.approx(due, abs=1e-5)
        ends += ended
    assert ends or own.gymnasium_id == "Pendulum-v1"


@EVERY
def test_a_step_in_jax_is_the_step_in_numpy(name):
    own = FUNCTIONAL[name]() if FUNCTIONAL[name].gymnasium_id else FUNCTIONAL[name](noise=0.0)
    mine, in_jax = AsGymnasium(own), jax.jit(own.step)
    own.action_space.seed(0)
    for seed in range(3):
        mine.reset(seed=seed)
        for _ in range(40):
            state, action = mine._state, own.action_space.sample()
            found = mine.step(action)[:4]
            seen, after, *numbers, _ = in_jax(jax.random.key(seed), state, action, own.params)
            if name != "functional:Bandit-v0":  # it draws its rewards
                np.testing.assert_allclose(seen, found[0], atol=2e-5)
                np.testing.assert_allclose(np.float32(numbers), np.float32(found[1:]), atol=2e-5)
            kinds = jax.tree.map(lambda leaf: (np.shape(leaf), np.asarray(leaf).dtype.kind), (after, mine._state))
            assert kinds[0] == kinds[1]
            if found[2]:
                break


@EVERY
def test_it_is_an_environment_of_gymnasium(name):
    check_functional(FUNCTIONAL[name]())
    check_env(AsGymnasium(FUNCTIONAL[name]()), skip_render_check=True)


@CLASSIC
def test_what_gymnasium_has_renders(name):
    env = make_environment(name, render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.spaces.action.sample())
    assert env.render().ndim == 3
    env.close()


def test_parameters_are_arguments():
    assert CartPole(gravity=1.6).params.gravity == 1.6
    with pytest.raises(ConfigError, match="gravitation"):
        etude.Run("ppo", "functional:CartPole-v1", env_args={"gravitation": 1.6})


@pytest.mark.parametrize("kind", [Grid, FourRooms])
def test_walls_stay_in_the_way_and_every_cell_leads_to_the_goal(kind):
    own, rng = kind(), np.random.default_rng(0)
    height, width = own.observation_space.nvec
    moves = ((-1, 0), (0, 1), (1, 0), (0, -1))
    cells = [(r, c) for r in range(height) for c in range(width) if kind.MAP[r][c] == "."]
    assert {tuple(own.begin(rng, own.params).tolist()) for _ in range(2_000)} == set(cells)
    reached, ahead = {(r, c) for r in range(height) for c in range(width) if kind.MAP[r][c] == "G"}, True
    while ahead:
        ahead = False
        for cell in cells:
            for way, (down, right) in enumerate(moves):
                beside = cell[0] + down, cell[1] + right
                due = cell if kind.MAP[beside[0]][beside[1]] == "x" else beside
                after, reward, there = own.move(rng, np.int32(cell), way, own.params)
                assert tuple(after.tolist()) == due and reward == there == (kind.MAP[due[0]][due[1]] == "G")
                if due in reached and cell not in reached:
                    reached.add(cell)
                    ahead = True
    assert reached >= set(cells)
    slips = own.params._replace(noise=0.5)
    ways = [tuple(own.move(rng, np.int32([2, 2]), 0, slips)[0].tolist()) for _ in range(2_000)]
    shares = [ways.count(each) / 2_000 for each in ((1, 2), (2, 3), (3, 2), (2, 1))]
    np.testing.assert_allclose(shares, [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.04)


class Slow:
    """MinAtar's Breakout, case by case."""

    def __init__(self, right):
        self.bricks = {(row, column) for row in (1, 2, 3) for column in range(10)}
        self.paddle, self.struck, self.lost = 4, False, False
        self.x, self.y, self.dx, self.dy = 9 if right else 0, 3, -1 if right else 1, 1

    def step(self, action):
        reward = 0
        self.paddle = min(9, max(0, self.paddle + (0, -1, 1)[action]))
        x, y = self.x + self.dx, self.y + self.dy
        if x in (-1, 10):
            x, self.dx = min(9, max(0, x)), -self.dx
        meets = False
        if y < 0:
            y, self.dy = 0, -self.dy
        elif (y, x) in self.bricks:
            meets = True
            if not self.struck:
                self.bricks.remove((y, x))
                reward, self.struck, y, self.dy = 1, True, self.y, -self.dy
        elif y == 9:
            if not self.bricks:
                self.bricks = {(row, column) for row in (1, 2, 3) for column in range(10)}
            if self.x == self.paddle:
                y, self.dy = self.y, -self.dy
            elif x == self.paddle:
                y, self.dx, self.dy = self.y, -self.dx, -self.dy
            else:
                self.lost = True
        self.struck = self.struck and meets
        self.trail, self.x, self.y = (self.x, self.y), x, y
        return reward


def test_breakout_is_that_of_minatar_case_by_case():
    own, rng, cleared, most = Breakout(noise=0.0), np.random.default_rng(0), 0, 0
    for episode in range(6):
        mine = AsGymnasium(own)
        mine.reset(seed=episode)
        slow, total = Slow(mine._state[0][1][0] == 9), 0
        if episode % 2:  # only three bricks are left
            slow.bricks = {(int(rng.integers(1, 4)), int(column)) for column in rng.choice(10, 3, replace=False)}
            left = np.array([[(row, column) in slow.bricks for column in range(10)] for row in range(10)], np.float32)
            mine._state = (*mine._state[0][:4], left, *mine._state[0][5:]), 0
        for step in range(1_000):
            # To one of two columns that the ball comes down in, at times at random.
            towards = np.sign(slow.x + slow.dx * (step // 50 % 2) - slow.paddle)
            action = int({-1: 1, 0: 0, 1: 2}[towards]) if rng.random() > 0.005 else int(rng.integers(3))
            seen, reward, terminated, truncated, _ = mine.step(action)
            assert (reward, terminated) == (slow.step(action), slow.lost)
            image = np.zeros((10, 10, 4), np.uint8)
            image[9, slow.paddle, 0] = image[slow.y, slow.x, 1] = image[slow.trail[1], slow.trail[0], 2] = 255
            for row, column in slow.bricks:
                image[row, column, 3] = 255
            np.testing.assert_array_equal(seen, image)
            total += reward
            if terminated or truncated:
                break
        cleared, most = cleared + (episode % 2 and total > 3), max(most, total)
    assert cleared and most > 9 and Box(0, 255, (10, 10, 4), np.uint8) == own.observation_space


def test_a_sticky_action_is_taken_again():
    own, rng, court = Breakout(noise=0.25), np.random.default_rng(0), Breakout().begin(np.random.default_rng(0), None)
    court = (*court[:-1], np.int32(1))
    moved = [int(own.move(rng, court, np.int32(2), own.params)[0][0]) for _ in range(2_000)]
    assert moved.count(3) / 2_000 == pytest.approx(0.25, abs=0.04) and moved.count(3) + moved.count(5) == 2_000


def test_arms_keep_their_chances_for_an_episode():
    own, rng = Bandit(arms=3, max_steps=7), np.random.default_rng(0)
    assert own.observation_space.shape == (4,) and own.action_space.n == 3
    state = own.begin(rng, own.params)
    won = [own.move(rng, state, np.int32(1), own.params)[1] for _ in range(2_000)]
    assert np.mean(won) == pytest.approx(float(state[0][1]), abs=0.04)
    after, reward, _ = own.move(rng, state, np.int32(2), own.params)
    np.testing.assert_array_equal(own.observe(after), [0, 0, 1, reward])
    np.testing.assert_array_equal(after[0], state[0])
