"""Runs whose steps one compiled program collects."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude import ops
from etude.algorithms import PPOConfig, RecurrentPPO, RecurrentPPOConfig
from etude.base.data import RECURRENT_STATE
from etude.base.errors import ConfigError
from etude.base.events import Collected
from etude.base.spaces import Box, Discrete
from etude.envs.functional import FunctionalEnvironment
from etude.training.compiled import CompiledRollout

CARTPOLE = "functional:CartPole-v1"
PLAIN = {"normalize_observation": False, "normalize_reward": False}
SMALL = PPOConfig(rollout_length=8, minibatch_size=32, epochs=2, **PLAIN)


def made(env=CARTPOLE, config=SMALL, environments=8, algorithm="ppo", **execution):
    execution = etude.Execution(vectorization="compiled", **execution)
    return etude.Run(algorithm, env, config=config, engine="jax", environments=environments, execution=execution)


def rewards_of(events):
    return [(end.environment, end.length, end.total) for e in events if isinstance(e, Collected) for end in e.episodes]


def test_a_run_collects_in_one_program_and_keeps_last_observations():
    run, every = made(), []
    for event in run.steps(512):
        if isinstance(event, Collected):
            every += [part.copied() for part in event.steps]
    assert isinstance(run.collection.rollout, CompiledRollout) and every[0].observation.shape == (8, 8, 4)
    assert sum(len(steps.episodes) for steps in every) == sum(len(steps.final_index) for steps in every) > 0
    theirs = gym.make("CartPole-v1").unwrapped
    theirs.reset()
    for steps in every:
        for t, n in ((0, 0), (3, 5), (7, 7), *steps.final_index.tolist()):
            theirs.state, theirs.steps_beyond_terminated = steps.observation[t, n], None
            expected, _, terminated, *_ = theirs.step(int(steps.action[t, n]))
            np.testing.assert_allclose(steps.next_observations()[t, n], expected, atol=1e-5)
            assert steps.terminated[t, n] == terminated


def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path):
    whole, part = made(), made()
    theirs = list(whole.steps(128, total=256)) + list(whole.steps(128, total=256))
    list(part.steps(128, total=256))
    part.save(tmp_path / "run")
    resumed = etude.load(tmp_path / "run")
    own = list(resumed.steps(128, total=256))
    assert rewards_of(own) == rewards_of(theirs)[-len(rewards_of(own)) :]
    weights = resumed.learner.engine.weights()
    for name, value in whole.learner.engine.weights().items():
        np.testing.assert_array_equal(weights[name], value)
    # On another engine environments are stepped one by one: they begin new episodes, and say so.
    other = etude.load(tmp_path / "run", execution=etude.Execution(vectorization="loop", engine="torch"))
    assert any("could not be replayed" in str(event) for event in other.steps(64))


def test_memories_go_from_step_to_step_and_begin_anew_with_each_episode():
    config = RecurrentPPOConfig(rollout_length=64, sequence_length=8, epochs=1, learning_rate=1e-12, **PLAIN)
    run = made(config=config, environments=4, algorithm="recurrent_ppo")
    (steps,) = next(event for event in run.steps(256) if isinstance(event, Collected)).steps
    state, ended = steps.extras[RECURRENT_STATE], steps.terminated | steps.truncated
    assert ended.any() and not state[0].any() and not state[1:][ended[:-1]].any()
    for t in range(63):
        _, after = run.engine.act(steps.observation[t], state[t])
        goes_on = ~ended[t]
        np.testing.assert_allclose(state[t + 1][goes_on], np.asarray(after)[goes_on], atol=1e-5)


class Earning(RecurrentPPO):
    """Remembers what it has earned, too."""

    def build(self, make, spaces):
        super().build(make, spaces)
        self.state_size += 1

    def act(self, observation, state):
        output, after = super().act(observation, state)
        return output, ops.concatenate([after, state[:, -1:]], -1)

    def value(self, observation, state, first=None):
        value, after = super().value(observation, state, first)
        return value, ops.concatenate([after, state[:, -1:]], -1)

    def _split(self, state):
        return super()._split(state[:, :-1])

    def rewarded(self, state, reward):
        return ops.concatenate([state[:, :-1], state[:, -1:] + ops.expand_dims(reward, -1)], -1)


def test_rewards_are_remembered_within_an_episode():
    agent = Earning(RecurrentPPOConfig(rollout_length=64, sequence_length=8, **PLAIN))
    run = etude.Run(agent, CARTPOLE, engine="jax", environments=4, execution=etude.Execution(vectorization="compiled"))
    (steps,) = next(event for event in run.steps(256) if isinstance(event, Collected)).steps
    earned, goes_on = steps.extras[RECURRENT_STATE][..., -1], ~(steps.terminated | steps.truncated)[:-1]
    assert not goes_on.all() and not earned[1:][~goes_on].any()
    np.testing.assert_allclose(earned[1:][goes_on], (earned[:-1] + steps.reward[:-1])[goes_on])


class Endless(FunctionalEnvironment):
    """A reward of 1 at every step, cut off after ten, at a time that agents do not see."""

    observation_space, action_space = Box(0.0, 1.0, (1,)), Discrete(2)

    def reset(self, key, params):
        return np.zeros(1, np.float32), 0

    def step(self, key, state, action, params):
        return np.zeros(1, np.float32), state + 1, 1.0, False, state + 1 >= 10, {}


class Forgetful(Endless):
    """The same behind a wrapper that takes the end of the clock for the end of the world."""

    def step(self, key, state, action, params):
        observation, state, reward, _, truncated, info = super().step(key, state, action, params)
        return observation, state, reward, truncated, False, info


@pytest.mark.parametrize("env", [Endless, Forgetful])
def test_the_value_of_an_endless_task_that_is_cut_off(env):
    config = PPOConfig(rollout_length=16, minibatch_size=128, epochs=10, gamma=0.8, learning_rate=0.01, **PLAIN)
    run = made(env, config)
    run.train(12_800)
    value = float(run.engine.value(np.zeros((1, 1), np.float32))[0])
    assert (abs(value - 1 / (1 - 0.8)) < 0.02 * 5) == (env is Endless), value


def test_what_cannot_be_compiled_is_refused_by_name():
    with pytest.raises(ConfigError, match="engine = 'torch'"):
        etude.Run("ppo", CARTPOLE, engine="torch", execution=etude.Execution(vectorization="compiled")).train(8)
    with pytest.raises(ConfigError, match="FunctionalEnvironment"):
        made("CartPole-v1").train(64)
