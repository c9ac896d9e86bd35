"""Learned rewards on every engine, and the example agents that learn them."""

import importlib
import os

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but
from gymnasium.spaces import Box, Discrete
from solo_agents import agent_for, discrete, pool_of, train
from solo_cases import agents_of

from etude.base.errors import ConfigError
from etude.examples.experts import Expert, play
from etude.explore import SoftmaxPolicy

pytestmark = pytest.mark.usefixtures("workers_step")
LENGTH = 20


class Sides(gym.Env):
    """The observation is random, and so is where an episode is: all end after as many steps. The environment rewards
    what the expert never does."""

    observation_space, action_space = Box(-1.0, 1.0, (2,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        wrong = int(action) != side(self.seen)
        return self.observe(), float(wrong), False, self.t == LENGTH, {}

    def observe(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen


def side(observation):
    return int(observation[0] > 0)


class Judged:
    """Its reward model is written down, so that its rewards are known."""

    def action(self, s):
        return [2 * s, super().action(s)]

    def reward_model(self, inputs, a, next_s, d):
        return self.scale * inputs[:, 1] + next_s[:, 0] - d


class Misjudged(Judged):
    def reward_model(self, inputs, a, next_s, d):
        return inputs


def imitator(module, engine_name, rates=(3e-3, 3e-3, 3e-3), env=Sides, seed=1, **settings):
    """A small GAIL or AIRL of an expert of `Sides`, ready to train."""
    os.environ["KERAS_BACKEND"] = engine_name
    library = importlib.import_module("torch" if engine_name == "torch" else "keras")
    agents_of(engine_name).seed(seed)
    kind = getattr(importlib.import_module(f"etude.examples.{library.__name__}_agents.{module}"), module.upper())
    agent = kind(2, 16, 2, 0.2, 0.01, Expert.of(play(side, Sides, 10)), env=env, gamma=0.5)
    agent.seed = seed
    given = {"pool_size": 1000, "batch": 64, "num_updates": 20, "update_steps": 100}
    agent.set(SoftmaxPolicy(), **given | settings, PPO=True, IRL=True)
    if engine_name == "torch":
        agent.optimizer = [library.optim.Adam(group, rate) for group, rate in zip(agent.param, rates, strict=True)]
    else:
        agent.optimizer = [library.optimizers.Adam(rate) for rate in rates]
    return agent


def engine_of(agent):
    return agent._session_state.session.learner.engine


def sample(agent, k=2, n=8):
    """A minibatch of the pool, and what the loss gets of it."""
    batch = pool_of(agent).sample(k, n)
    return batch, engine_of(agent)._interface.loss_arguments(batch)


def judged(engine_name, *kinds, episodes=3, settings=None, **options):
    agent = agent_for(engine_name, "DQN", *kinds)
    agent.set(**(settings or discrete(IRL=True)))
    train(agent, engine_name, episodes, **options)
    return agent


@pytest.mark.parametrize("processes", variants_but((None,), (None, 2)))
def test_what_the_reward_is_computed_from_is_stored_beside_the_step(processes, engine_name):
    agent = judged(engine_name, Judged, processes=processes)
    batch, _ = sample(agent)
    np.testing.assert_allclose(batch.extras["reward_inputs"], 2 * batch.observation, rtol=1e-6)


def test_the_loss_gets_the_rewards_of_the_model_and_only_the_environments_are_reported(engine_name):
    agent = judged(engine_name, Judged)
    batch, (_, _, next_s, r, d) = sample(agent)
    assert d.any()
    np.testing.assert_allclose(r, 2 * batch.observation[..., 1] + next_s[..., 0] - d, rtol=1e-5)
    assert (r.shape, r.dtype) == ((2, 8), np.float32)
    assert (batch.reward == 1).all()
    assert agent.reward_list == [5.0] * 3


def test_rewards_are_those_of_the_present_model_also_of_old_steps(engine_name):
    agent = imitator("gail", engine_name)
    train(agent, engine_name, 2)
    batch, before = sample(agent)
    engine = engine_of(agent)
    np.testing.assert_array_equal(engine._interface.loss_arguments(batch)[3], before[3])
    engine.load({name: value + 0.1 for name, value in engine.weights().items() if name.startswith("discriminator")})
    after = engine._interface.loss_arguments(batch)[3]
    assert (np.abs(after - before[3]) > 1e-3).all()


def test_a_changed_hyperparameter_changes_rewards_and_nothing_is_traced_again(engine_name):
    agent = judged(engine_name, Judged)
    batch, before = sample(agent)
    traces = engine_of(agent).traces
    agent.scale = 3.0
    after = engine_of(agent)._interface.loss_arguments(batch)[3]
    np.testing.assert_allclose(after - before[3], 4 * batch.observation[..., 1], rtol=1e-4)
    train(agent, engine_name, 1)
    assert engine_of(agent).traces == traces


@pytest.mark.variant
@pytest.mark.parametrize("settings", [{"PR": True}, {"num_updates": None}], ids=["PR", "passes"])
def test_it_works_with_other_settings(settings, engine_name):
    agent = judged(engine_name, Judged, settings=discrete(IRL=True, **settings))
    assert np.isfinite(agent.loss_list).all()
    assert len(agent.loss_list) == 3


def test_a_reward_for_each_step_is_asked_for(engine_name):
    with pytest.raises(ConfigError, match=r"reward_model returned shape \(8, 3\) for 8 steps; expected one reward"):
        judged(engine_name, Misjudged)


def test_an_agent_that_returns_no_pair_is_told_so(engine_name):
    class Unpaired(Judged):
        def action(self, s):
            return super().action(s)[1]

    with pytest.raises(ConfigError, match=r"action\(s\) returns \[inputs, a\].*it returned an array"):
        judged(engine_name, Unpaired)


def test_an_agent_with_learned_rewards_plays_to_a_file(engine_name, tmp_path):
    agent = judged(engine_name, Judged)
    assert agent.animate_agent(10, tmp_path / "play.gif") == 5.0
    assert (tmp_path / "play.gif").stat().st_size > 0


@pytest.mark.variant
def test_a_restored_agent_goes_on_with_the_same_numbers(engine_name, tmp_path):
    def made():
        agent = agent_for(engine_name, "DQN", Judged)
        agent.set(**discrete(IRL=True))
        return agent

    through, stopped, fresh = made(), made(), made()
    train(through, engine_name, 4)
    train(stopped, engine_name, 2)
    stopped.save(tmp_path / "agent.etude")
    fresh.restore(tmp_path / "agent.etude")
    train(fresh, engine_name, 2)
    assert fresh.loss_list == through.loss_list
    stored = [pool_of(agent).ring.extras["reward_inputs"] for agent in (fresh, through)]
    np.testing.assert_array_equal(*stored)


# -- the example agents ------------------------------------------------------------------------------------------------


def rewards_with(agent, **outputs):
    """The rewards of some steps when these networks return these numbers: (rewards, policy's probabilities, d)."""
    engine = engine_of(agent)
    for name, number in outputs.items():
        own = {key: np.zeros_like(x) for key, x in engine.weights().items() if key.split(".")[0] == name}
        last = next(key for key, x in own.items() if x.shape in ((), (1,)))  # the bias of the one output
        engine.load(own | {last: np.full_like(own[last], number)})
    rng = np.random.default_rng(0)
    s, next_s = rng.uniform(-1, 1, (2, 1, 6, 2)).astype(np.float32)
    a, d = np.array([[0, 1, 0, 1, 0, 1]]), np.array([[0, 0, 0, 1, 1, 1]], np.float32)
    chosen = np.take_along_axis(engine.act(s[0])[1], a[0][:, None], 1)[:, 0]
    return engine.rewards(s, a, next_s, d)[0], chosen, d[0]


def test_gail_earns_minus_log_one_minus_d(engine_name):
    agent = imitator("gail", engine_name)
    train(agent, engine_name, 1)
    found, _, _ = rewards_with(agent, discriminator=1.5)
    probability = 1 / (1 + np.exp(-1.5))  # D
    np.testing.assert_allclose(found, -np.log(1 - probability), rtol=1e-5)


def test_airl_earns_log_d_minus_log_one_minus_d_and_for_an_end_what_follows_for_ever(engine_name):
    agent = imitator("airl", engine_name)
    train(agent, engine_name, 1)
    found, pi, d = rewards_with(agent, discriminator=0.5, shaping=2.0, absorbing=-3.0)
    f = 0.5 + 0.5 * (1 - d) * 2.0 - 2.0  # g + gamma h(s') - h(s), with gamma = 0.5
    probability = np.exp(f) / (np.exp(f) + pi)  # D
    ever = d * (0.5 + 0.25 + 0.125 + 0.125) * -3.0  # the discounts of all later steps add up to 1
    np.testing.assert_allclose(found, np.log(probability) - np.log(1 - probability) + ever, rtol=1e-4)


@pytest.mark.long_but("gail")
@pytest.mark.parametrize("module", variants_but(("gail",), ("gail", "airl")))
def test_the_discriminator_learns_to_tell_the_expert_from_a_policy(module, engine_name):
    agent = imitator(module, engine_name, num_updates=1, update_steps=1000)
    train(agent, engine_name, 3)
    engine, steps = engine_of(agent), pool_of(agent).sample(16, 64)
    first = engine.learn(steps, {}).losses["loss2"]
    traces = engine.traces
    for _ in range(20):
        last = engine.learn(steps, {}).losses["loss2"]
    assert last < 0.9 * first
    assert engine.traces == traces, "the expert's steps are constants of the compiled step"


def imitated(agent, engine_name):
    """The share of steps in which the best action is the expert's."""
    s = np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32)
    return np.mean(engine_of(agent).act(s)[1].argmax(1) == (s[:, 0] > 0))


@pytest.mark.long_but("airl")
@pytest.mark.variant
@pytest.mark.parametrize("module", ["gail", "airl"])
def test_the_expert_is_imitated_against_the_rewards_of_the_environment(module, engine_name):
    agent = imitator(module, engine_name)
    train(agent, engine_name, 50)
    assert imitated(agent, engine_name) > 0.9
    assert np.mean(agent.reward_list[-10:]) < 0.35 * LENGTH, "the environment rewards what the expert never does"


@pytest.mark.variant
def test_without_a_discriminator_that_learns_nothing_is_imitated(engine_name):
    agent = imitator("gail", engine_name, rates=(3e-3, 3e-3, 0.0))
    train(agent, engine_name, 40)
    assert imitated(agent, engine_name) < 0.75
