"""Runs whose steps one compiled program collects, and whose phases one program learns from."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude.algorithms import PPOConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected, Learned
from etude.rollout.compiled import Compiled

CARTPOLE = "functional:CartPole-v1"
PLAIN = {"normalize_observation": False, "normalize_reward": False}
SMALL = PPOConfig(rollout_length=8, minibatch_size=32, epochs=2, **PLAIN)


def made(env=CARTPOLE, config=SMALL, environments=8, **execution):
    execution = etude.Execution(vectorization="compiled", **execution)
    return etude.Run("ppo", env, config=config, engine="jax", environments=environments, execution=execution)


def rewards_of(events):
    return [(end.environment, end.length, end.total) for e in events if isinstance(e, Collected) for end in e.episodes]


def test_a_run_collects_in_one_program_and_keeps_last_observations():
    run, every = made(), []
    for event in run.steps(512):
        if isinstance(event, Collected):
            every += [part.copied() for part in event.steps]
    assert isinstance(run._lifecycle.rollout, Compiled) and every[0].observation.shape == (8, 8, 4)
    assert sum(len(steps.episodes) for steps in every) == sum(len(steps.final_index) for steps in every) > 0
    theirs = gym.make("CartPole-v1").unwrapped
    theirs.reset()
    for steps in every:
        for t, n in ((0, 0), (3, 5), (7, 7), *steps.final_index.tolist()):
            theirs.state, theirs.steps_beyond_terminated = steps.observation[t, n], None
            expected, _, terminated, *_ = theirs.step(int(steps.action[t, n]))
            np.testing.assert_allclose(steps.next_observations()[t, n], expected, atol=1e-5)
            assert steps.terminated[t, n] == terminated


def test_a_fused_run_has_the_events_and_the_numbers_of_one_that_is_not():
    schedule = {"evaluate_every": 320, "evaluate_episodes": 1, "save_every": 128}
    apart, fused = made(), made(fused=True)
    theirs, own = list(apart.steps(664, **schedule)), list(fused.steps(664, **schedule))
    assert [(type(e), e.step) for e in own] == [(type(e), e.step) for e in theirs]
    assert rewards_of(own) == rewards_of(theirs) and rewards_of(own)
    weights = fused.learner.engine.weights()
    for name, value in apart.learner.engine.weights().items():
        np.testing.assert_allclose(weights[name], value, atol=1e-5)
    for one, two in zip(own, theirs, strict=True):
        if isinstance(one, Learned):
            assert one.gradient_steps == two.gradient_steps
            assert one.losses == pytest.approx(two.losses, rel=1e-3)
            assert one.metrics == pytest.approx(two.metrics, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path, fused):
    whole, part = made(fused=fused), made(fused=fused)
    theirs = list(whole.steps(128, total=256)) + list(whole.steps(128, total=256))
    list(part.steps(128, total=256))
    part.save(tmp_path / "run")
    resumed = etude.load(tmp_path / "run")
    own = list(resumed.steps(128, total=256))
    assert rewards_of(own) == rewards_of(theirs)[-len(rewards_of(own)) :]
    weights = resumed.learner.engine.weights()
    for name, value in whole.learner.engine.weights().items():
        np.testing.assert_array_equal(weights[name], value)
    if not fused:  # on another engine environments are stepped one by one: they begin new episodes, and say so
        other = etude.load(tmp_path / "run", execution=etude.Execution(vectorization="loop", engine="torch"))
        assert any("could not be replayed" in str(event) for event in other.steps(64))


def test_what_cannot_be_compiled_is_refused_by_name():
    with pytest.raises(ConfigError, match="engine = 'torch'"):
        etude.Run("ppo", CARTPOLE, engine="torch", execution=etude.Execution(vectorization="compiled")).train(8)
    with pytest.raises(ConfigError, match="FunctionalEnvironment"):
        made("CartPole-v1").train(64)
    with pytest.raises(ConfigError, match="normalize_observation"):
        made(config=PPOConfig(normalize_observation=True), fused=True)
