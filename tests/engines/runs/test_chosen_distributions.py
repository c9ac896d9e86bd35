"""Runs whose policies have another distribution than the usual one: what they learn, refuse, save and load."""

from __future__ import annotations

import math
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from run_cases import differences

import etude
from etude import ByEmbedding, Mlp, ops
from etude.algorithms import A2CConfig, BCConfig, DistributionSpec, OwnDistribution, PPOConfig
from etude.base.data import Episode
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Box, MultiDiscrete, Spaces
from etude.losses.distributions.continuous import normal_tail
from etude.offline import Dataset

SHUFFLED = "etude.examples.cart_pole:WithShuffledActions"
TINY = {"network": Mlp((8,)), "rollout_length": 16, "minibatch_size": 16, "epochs": 2}
BETA, MIXTURE = DistributionSpec("beta"), DistributionSpec("mixture", components=2)
CONDITIONAL = DistributionSpec("conditional", hidden=(8,))


class Levers(gym.Env):
    """One state, several choices, of which the mask forbids the last of the first; 4 steps. Rewards equal choices."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)

    def __init__(self, sizes=(3, 2)):
        self.action_space = gym.spaces.MultiDiscrete(list(sizes))
        self.mask = np.ones(sum(sizes), np.int8)
        self.mask[sizes[0] - 1] = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.ones(2, np.float32), {"action_mask": self.mask}

    def step(self, action):
        assert self.mask[action[0]] == 1
        self.time += 1
        reward = float(action[0] == action[1])
        return np.ones(2, np.float32), reward, False, self.time == 4, {"action_mask": self.mask}


class Unbounded(gym.Env):
    """Box actions without bounds."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.ones(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 0.0, True, False, {}


class Laplace(NamedTuple):
    """A distribution of a user: action [B, A]; noise [B, A] normal."""

    centre: object
    log_scale: object

    def sample(self, noise):
        tail = ops.squeeze(normal_tail(ops.expand_dims(noise, -1)), -1)
        return self.centre - ops.exp(self.log_scale) * ops.sign(noise) * ops.log(2 * tail)

    def sample_with_log_prob(self, noise):
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action):
        far = ops.abs(action - self.centre) * ops.exp(-self.log_scale)
        return ops.sum(-far - self.log_scale - math.log(2), -1)

    def entropy(self):
        return ops.sum(self.log_scale + (1 + math.log(2)), -1)

    def mode(self):
        return self.centre


def laplace(x):
    return Laplace(x[..., :1], 0.1 * x[..., 1:])


def pairs(count=400):
    """(a, b) with a fair coin a and b = a."""
    coins = np.random.default_rng(0).permutation(np.repeat([0, 1], count // 2))
    space = Spaces(Box(0, 1, (2,), np.float32), MultiDiscrete([2, 2]))
    observation, reward = np.ones((2, 2), np.float32), np.zeros(1, np.float32)
    return Dataset(tuple(Episode(observation, np.array([[a, a]]), reward, True, False) for a in coins), space)


class Coins(Levers):
    """The world of `pairs`."""

    def __init__(self):
        super().__init__((2, 2))
        self.mask[:] = 1

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}

    def step(self, action):
        return *super().step(action)[:4], {}


@pytest.mark.parametrize(("distribution", "nats"), [(CONDITIONAL, math.log(2)), (DistributionSpec(), 2 * math.log(2))])
def test_cloned_pairs_take_the_entropy_of_one_coin_and_of_two_where_choices_are_independent(
    distribution, nats, engine_name
):
    data = pairs()
    config = BCConfig(network=Mlp((16,)), learning_rate=1e-2, batch_size=100, distribution=distribution)
    with etude.Run("bc", Coins, config=config, data=data, engine=engine_name) as run:
        run.train(600)
        action = np.array([episode.action[0] for episode in data.episodes])
        policy = run.engine.act(np.ones((len(action), 2), np.float32))
        assert -policy.log_prob(action).mean() == pytest.approx(nats, abs=5e-3)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("env", "distribution"),
    [
        pytest.param("Pendulum-v1", BETA, id="beta"),
        pytest.param("Pendulum-v1", MIXTURE, id="mixture"),
        pytest.param(Levers, CONDITIONAL, id="conditional"),
    ],
)
def test_workers_change_nothing_and_what_is_saved_goes_on_as_it_was(env, distribution, engine_name, tmp_path):
    config = PPOConfig(**TINY, distribution=distribution)
    setup = {"config": config, "environments": 2, "engine": engine_name}
    with etude.Run("ppo", env, **setup) as whole:
        whole.train(64)
        whole.train(64)
        expected = whole.engine.weights()
    with etude.Run("ppo", env, workers=1, **setup) as first:
        first.train(64)
        first.save(tmp_path / "half.etude")
    with etude.load(tmp_path / "half.etude", env=None if isinstance(env, str) else env) as second:
        assert second.agent.config.distribution == distribution
        second.train(64)
        assert not differences(expected, second.engine.weights())


@pytest.mark.variant
def test_collecting_ahead_with_the_choices_of_a_conditional_policy(engine_name):
    with etude.Run(
        "impala",
        Levers,
        network=Mlp((8,)),
        distribution=CONDITIONAL,
        environments=2,
        workers=2,
        engine=engine_name,
        execution=etude.Execution(overlap=True),
    ) as run:
        assert run.train(400).step == 400
        assert run.act(np.ones(2, np.float32), {"action_mask": Levers().mask})[0] in (0, 1)


@pytest.mark.variant
def test_a_conditional_policy_learns_to_make_equal_choices(engine_name):
    config = A2CConfig(network=Mlp((16,)), learning_rate=1e-2, distribution=CONDITIONAL)
    with etude.Run("a2c", Levers, config=config, environments=8, engine=engine_name) as run:
        run.train(4_000)
        assert run.evaluate(2).returns == (4.0, 4.0)


def test_a_distribution_of_ones_own_is_given_again_when_the_run_is_loaded(engine_name, tmp_path):
    config = PPOConfig(**TINY, distribution=OwnDistribution(laplace, 2))
    with etude.Run("ppo", "Pendulum-v1", config=config, environments=2, workers=1, engine=engine_name) as run:
        run.train(64)
        run.save(tmp_path / "own.etude")
        acted = run.act(np.ones(3, np.float32))
    with pytest.raises(ConfigError, match="distribution was made by OwnDistribution.*: give config="):
        etude.load(tmp_path / "own.etude")
    with etude.load(tmp_path / "own.etude", config=config) as run:
        assert run.act(np.ones(3, np.float32)) == acted
        run.train(32)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("CartPole-v1", {"distribution": BETA}, "beta is over Box actions; .* Discrete.2."),
        (Unbounded, {"distribution": BETA}, "beta needs Box actions with finite bounds"),
        (
            Unbounded,
            {"distribution": DistributionSpec("mixture", component="beta")},
            "beta components needs? Box actions",
        ),
        ("CartPole-v1", {"distribution": MIXTURE}, "mixture is over Box actions"),
        ("CartPole-v1", {"distribution": CONDITIONAL}, "conditional takes the choices of MultiDiscrete"),
        (lambda: Levers((80, 80)), {"distribution": CONDITIONAL}, "at most 4096 combinations"),
        ("Pendulum-v1", {"distribution": BETA, "gsde": True}, "gsde = True and distribution"),
        ("Pendulum-v1", {"distribution": "beta"}, "distribution = 'beta'; expected DistributionSpec"),
        ("CartPole-v1", {"distribution": DistributionSpec("conditional")}, "MultiDiscrete"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(env, changes, message, engine_name):
    with pytest.raises(ConfigError, match=message):
        etude.Run("ppo", env, engine=engine_name, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributionSpec("betta"), "kind = 'betta'"),
        (lambda: DistributionSpec("mixture", components=0), "components = 0"),
        (lambda: DistributionSpec("mixture", component="tanh"), "component = 'tanh'"),
        (lambda: DistributionSpec("conditional", hidden=()), "at least one hidden layer"),
        (lambda: OwnDistribution(laplace, 0), "outputs = 0"),
        (lambda: OwnDistribution(2, 2), "make = 2; expected a function"),
        (lambda: BCConfig(squared_error=True, distribution=BETA), "squared_error = True"),
    ],
)
def test_wrong_distributions_are_refused_where_they_are_written(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.variant
def test_networks_by_embedding_are_saved_and_refuse_other_observations(engine_name, tmp_path):
    network = ByEmbedding(network=Mlp((8,)))
    fast = {"batch_size": 8, "learning_starts": 16, "train_every": 8, "gradient_steps": 2}
    with etude.Run("dqn", SHUFFLED, network=network, engine=engine_name, **fast) as run:
        run.train(64)
        run.save(tmp_path / "run.etude")
        expected = run.evaluate(2)
    with etude.load(tmp_path / "run.etude") as run:
        assert run.agent.config.network == network
        assert run.evaluate(2) == expected
    with pytest.raises(ConfigError, match="ByEmbedding.*normalize_observation = True"):
        etude.Run("ppo", SHUFFLED, network=network, normalize_observation=True, engine=engine_name)
    with pytest.raises(NetworkError, match="ByEmbedding.key='actions'. reads the embeddings"):
        etude.Run("dqn", "CartPole-v1", network=network, engine=engine_name)
