"""Imitation beside an environment whose own rewards are misleading, and what its rewards are computed from."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but
from run_cases import differences, measured

import etude
from etude import Mlp, offline
from etude.algorithms import AIRLConfig, GAILConfig
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected, Learned
from etude.base.spaces import Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.offline import Dataset

LENGTH = 20
GAMMA = 0.5


class Sides(gym.Env):
    """Observations are random, and all episodes end after as many steps. The environment rewards what the expert never
    does: it takes action 1, or one near 0.5, where the first number is above 0, and 0, or near -0.5, elsewhere."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, continuous: bool = False):
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        wrong = action != (self.seen[0] > 0) if np.ndim(action) == 0 else action[0] * self.seen[0] < 0
        return self.observe(), float(wrong), False, self.time == LENGTH, {}

    def observe(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen


def continuous():
    return Sides(continuous=True)


def experts(of_numbers=False, episodes=10):
    """Episodes of the expert of `Sides`, as agents see them: numbers in [-1, 1]."""
    rng, found = np.random.default_rng(5), []
    for _ in range(episodes):
        seen = rng.uniform(-1, 1, (LENGTH + 1, 2)).astype(np.float32)
        right = (seen[:-1, 0] > 0).astype(np.int64)
        action = np.float32(rng.normal(right[:, None] - 0.5, 0.2)).clip(-1, 1) if of_numbers else right
        found.append(Episode(seen, action, np.zeros(LENGTH, np.float32), False, True))
    space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if of_numbers else Discrete(2)
    return Dataset(tuple(found), Spaces(Sides.observation_space, space))


FAST = {
    "network": Mlp((16,), "tanh"), "gamma": GAMMA, "learning_rate": 1e-2, "discriminator_learning_rate": 1e-2,
    "rollout_length": 50, "minibatch_size": 100, "epochs": 10, "initial_log_std": -1.0,
}  # fmt: skip
CONFIGS = {
    "gail": GAILConfig(**FAST),
    "gail, log D": GAILConfig(**FAST, reward_form="log D"),
    "gail, log odds": GAILConfig(**FAST, reward_form="log D - log(1-D)"),
    "airl": AIRLConfig(**FAST),
}


def made(name, engine_name, of_numbers=False, config=None, **settings):
    env, data = (continuous if of_numbers else Sides), experts(of_numbers)
    given = {"engine": engine_name, "environments": 4, "seed": 1, "data": data, **settings}
    return etude.Run(name.split(",")[0], env, config=config or CONFIGS[name], **given)


def seen(count=1000):
    return np.random.default_rng(0).uniform(-1, 1, (count, 2)).astype(np.float32)


def imitated(run):
    """The share of observations at which the best action is on the expert's side."""
    observation, actor = seen(), run.actor()
    action = np.reshape(actor.act(observation).mode(), -1)
    threshold = 0.5 if isinstance(run.engine.spaces.action, Discrete) else 0.0
    return np.mean((action > threshold) == (observation[:, 0] > 0))


def of_agent(run):
    """The agent with the run's weights, in NumPy."""
    engine = NumpyEngine(run.agent, run.engine.spaces)
    return engine.layout.bind(run.engine.weights())


@functools.cache
def trained(name, engine_name, of_numbers):
    with made(name, engine_name, of_numbers) as run:
        run.train(4_000)
    return run


@pytest.mark.long_but("airl-False", "gail-True")
@pytest.mark.parametrize("of_numbers", variants_but((False,), (False, True)))
@pytest.mark.parametrize("name", variants_but(("airl",), CONFIGS))
def test_the_expert_is_imitated_against_the_rewards_of_the_environment(name, of_numbers, engine_name):
    run = trained(name, engine_name, of_numbers)
    assert imitated(run) > 0.9
    assert run.evaluate(10).mean < 0.15 * LENGTH, "it is evaluated by the environment, which rewards the contrary"


@pytest.mark.variant
@pytest.mark.parametrize("name", ["gail", "airl"])
def test_without_a_discriminator_that_learns_nothing_is_imitated(name, engine_name):
    config = type(CONFIGS[name])(**FAST | {"discriminator_learning_rate": 0.0})
    run = made(name, engine_name, config=config)
    run.train(4_000)
    assert imitated(run) < 0.8


def learned_rewards(run):
    """Of both actions: [2, 1000]."""
    return np.array([of_agent(run).learned_reward(seen(), np.full(1000, action)) for action in (0, 1)])


def test_the_learned_reward_ranks_the_experts_action_first(engine_name):
    found = learned_rewards(trained("airl", engine_name, False))
    assert np.mean(found.argmax(0) == (seen()[:, 0] > 0)) > 0.9


def test_a_reward_of_states_alone_does_not_read_actions(engine_name):
    for alone in (True, False):
        found = learned_rewards(made("airl", engine_name, config=AIRLConfig(**FAST, state_only=alone)))
        assert (found[0] == found[1]).all() == alone


def told_with(run, biases):
    """The rewards of some steps when these networks return these numbers: (rewards, probabilities, discounts)."""
    for name, number in biases.items():
        own = {key: np.zeros_like(x) for key, x in run.engine.weights().items() if key.startswith(name)}
        last = next(key for key, x in own.items() if x.shape == (1,))
        run.engine.load(own | {last: np.full_like(own[last], number)})
    action, discount = np.array([0, 1, 0, 1]), np.float32([GAMMA, GAMMA, 0, 0])
    probability = np.exp(run.engine.act(seen(4)).log_prob(action))
    return run.engine.reward(seen(4), action, seen(8)[4:], discount), probability, discount


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gail", lambda d: -np.log(1 - d)),
        ("gail, log D", np.log),
        ("gail, log odds", lambda d: np.log(d) - np.log(1 - d)),
    ],
)
def test_gail_tells_the_form_of_reward_that_was_asked_for(name, expected, engine_name):
    found, _, _ = told_with(made(name, engine_name), {"discriminator": 1.5})
    probability = 1 / (1 + np.exp(-1.5))  # D
    np.testing.assert_allclose(found, np.full(4, expected(probability)), rtol=1e-5)


def test_airl_tells_log_d_minus_log_one_minus_d_and_nothing_follows_an_end(engine_name):
    run = made("airl", engine_name)
    found, pi, discount = told_with(run, {"discriminator.reward": 0.5, "discriminator.potential": 2.0})
    f = 0.5 + discount * 2.0 - 2.0
    probability = np.exp(f) / (np.exp(f) + pi)  # D
    np.testing.assert_allclose(found, np.log(probability) - np.log(1 - probability), rtol=1e-4)


@pytest.mark.variant
def test_a_run_steps_its_environment_and_tells_how_well_the_discriminator_tells(engine_name):
    data, run = experts(), made("gail", engine_name)
    observed = np.concatenate([episode.observation[:-1] for episode in data.episodes]).mean(0)
    np.testing.assert_allclose(run.engine.weights()["normaliser.all.mean"], observed, rtol=1e-4, atol=1e-5)
    events = list(run.steps(1_000))
    assert run.step == 1_000 and any(isinstance(event, Collected) for event in events)
    assert events[0].description["steps"] == "environment"
    assert events[0].description["data"]["transitions"] == len(data)
    assert not np.allclose(run.engine.weights()["normaliser.all.mean"], observed, rtol=1e-4)
    learned = [event for event in events if isinstance(event, Learned)]
    assert len(learned) == 1_000 // 200
    assert set(learned[0].losses) == {"model", "discriminator"}
    assert learned[0].losses["discriminator"] == pytest.approx(np.log(2), abs=0.1)
    for name in ("expert_accuracy", "policy_accuracy"):
        assert 0 <= learned[-1].metrics[name] <= 1
    assert learned[-1].metrics["discriminator_reward"] > 0


@pytest.mark.variant
@pytest.mark.parametrize("name", ["gail", "airl"])
def test_a_resumed_run_equals_the_uninterrupted_one_without_the_file(name, engine_name, tmp_path):
    path = tmp_path / "expert.h5"
    offline.write(path, etude.record("CartPole-v1", 10))
    config = type(CONFIGS[name])(**FAST | {"rollout_length": 16, "minibatch_size": 16, "discriminator_every": 3})
    schedule = {"evaluate_every": 200, "evaluate_episodes": 2}
    settings = {"engine": engine_name, "seed": 3, "environments": 4, "config": config}
    whole = etude.Run(name, "CartPole-v1", data=path, **settings)
    list(whole.steps(300, **schedule))
    whole.save(tmp_path / "run.etude")
    expected = measured(list(whole.steps(300, **schedule)))
    path.unlink()
    again = etude.load(tmp_path / "run.etude")
    assert measured(list(again.steps(300, **schedule))) == expected
    assert differences(again.state(), whole.state()) == []


@pytest.mark.variant
@pytest.mark.parametrize("name", ["gail", "airl"])
def test_the_same_seed_gives_the_same_numbers_whoever_collects(name, engine_name):
    found, states = [], []
    for workers in (0, 0, 2):
        config = type(CONFIGS[name])(**FAST | {"rollout_length": 16})
        settings = {"config": config, "data": etude.record("CartPole-v1", 4), "environments": 4, "workers": workers}
        with etude.Run(name, "CartPole-v1", engine=engine_name, seed=3, **settings) as run:
            found.append(measured(list(run.steps(300))))
            states.append(run.state()["engine"])
    assert found[0] == found[1] == found[2]
    assert differences(states[0], states[1]) == differences(states[0], states[2]) == []


@pytest.mark.parametrize("name", ["gail", "airl"])
def test_what_cannot_be_imitated_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name.upper()} learns from recorded data: give data="):
        etude.Run(name, Sides)
    with pytest.raises(DataError, match=r"The data holds actions of Discrete\(2\), and the environment has Box"):
        etude.Run(name, continuous, data=experts())
    with pytest.raises(ConfigError, match="of one agent"):
        etude.Run(name, "mpe2:simple_spread_v3", data=experts())


def test_configs_refuse_what_cannot_be():
    with pytest.raises(ConfigError, match="normalize_reward and clip_reward change the environment's rewards"):
        GAILConfig(normalize_reward=True)
    with pytest.raises(ConfigError, match="reward_form = 'D'; expected '-log"):
        GAILConfig(reward_form="D")
    with pytest.raises(ConfigError, match="discriminator_every = 0"):
        AIRLConfig(discriminator_every=0)
    with pytest.raises(ConfigError, match="discriminator_learning_rate = -1"):
        AIRLConfig(discriminator_learning_rate=-1)
