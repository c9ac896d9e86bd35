"""Masks beside values: a value of minus a thousand million is like any other, and what is forbidden is never chosen."""

import numpy as np
import pytest
from cases import MASKED

from etude import Mlp, engines
from etude.algorithms import CQLConfig, DiscreteSACConfig, DQNConfig, PPOConfig, QRDQNConfig, find
from etude.base import trees
from etude.base.data import Batch
from etude.base.schedules import at
from etude.base.spaces import Discrete, Spaces, zeros
from etude.engines.numpy import NumpyEngine
from etude.explore import EpsilonGreedy, Greedy

pytestmark = pytest.mark.variant("jax")  # TensorFlow: with --whole

SPACES, FLAT = Spaces(MASKED, Discrete(3)), Mlp(())
VALUES = np.float32([-1e9, -2e9, -3e9])  # of the three actions, wherever one is
ALLOWED = np.int8([[0, 1, 1], [1, 1, 1], [0, 0, 1]])
BEST = np.float32([-2e9, -1e9, -3e9])
REWARD, DISCOUNT, ACTION = np.float32([-1e9, 1.0, -2e9]), np.float32([0.5, 0.5, 0.0]), np.array([1, 0, 2])
TD = (REWARD.astype(np.float64) + DISCOUNT * BEST) - VALUES[ACTION]


def observed():
    return {**zeros(MASKED, 3), "action_mask": ALLOWED}


def engine_of(algorithm, config, engine_name, *heads):
    """An engine whose networks give VALUES for every observation: `heads` are their last biases."""
    agent = find(algorithm)[0](config)
    engine = (
        NumpyEngine(agent, SPACES) if engine_name == "numpy" else engines.create(engine_name, agent, SPACES, seed=0)
    )
    still = {name: np.zeros_like(value) for name, value in engine.weights().items()}
    engine.load(still)
    engine.load({name: np.repeat(VALUES, still[name].size // 3).reshape(still[name].shape) for name in heads})
    return engine


def learned(engine, config, **extras):
    fields = (observed(), ACTION, REWARD, DISCOUNT, observed(), np.ones(3, np.float32), np.zeros(3, np.int64), extras)
    hyper = {name: at(getattr(config, name), 0, 1) for name in engine.layout.hyper}
    return engine.learn(Batch(*(trees.map(lambda x: x[None], field) for field in fields)), hyper)


@pytest.mark.parametrize("engine", ["numpy", "own"])
def test_the_best_allowed_action_is_taken_however_low_its_value(engine, engine_name):
    made = engine_of("dqn", DQNConfig(network=FLAT), engine_name if engine == "own" else engine, "q.dense0.bias")
    output, noise = made.act(observed()), np.zeros((3, 2), np.float32)
    assert Greedy()(output, noise, 0, np.empty((3, 0))).action.tolist() == [1, 0, 2]
    noise[:, 1] = 0.999
    assert EpsilonGreedy(1.0)(output, noise, 0, np.empty((3, 0))).action.tolist() == [2, 2, 2]


@pytest.mark.parametrize("double", [False, True])
def test_the_target_is_the_best_allowed_value_however_low(double, engine_name):
    config = DQNConfig(network=FLAT, double=double, learning_rate=0.0, max_gradient_norm=None, epsilon=0.1)
    update = learned(engine_of("dqn", config, engine_name, "q.dense0.bias", "q_target.dense0.bias"), config)
    np.testing.assert_allclose(update.td_error[0], TD, rtol=1e-6)


def test_quantiles_are_compared_where_the_mask_allows(engine_name):
    config = QRDQNConfig(network=FLAT, quantiles=4, learning_rate=0.0, max_gradient_norm=None, epsilon=0.1)
    update = learned(engine_of("qr_dqn", config, engine_name, "q.dense0.bias", "q_target.dense0.bias"), config)
    np.testing.assert_allclose(update.td_error[0], TD, rtol=1e-6)


def test_the_gap_of_cql_is_over_what_the_mask_allows(engine_name):
    config = CQLConfig(network=FLAT, learning_rate=0.0)
    update = learned(engine_of("cql", config, engine_name, "critic.dense0.bias", "critic_target.dense0.bias"), config)
    np.testing.assert_allclose(update.td_error[0], TD, rtol=1e-6)
    np.testing.assert_allclose(update.metrics["gap"], np.mean(BEST - VALUES[ACTION]), rtol=1e-6)


@pytest.mark.parametrize("logit", [-1e9, 0.0])
def test_the_entropy_and_the_divergence_of_ppo_do_not_depend_on_the_level_of_logits(logit, engine_name):
    config = PPOConfig(network=FLAT, learning_rate=0.0, normalize_advantage=False)
    engine = engine_of("ppo", config, engine_name)
    engine.load({"model.policy.dense0.bias": np.full(3, logit, np.float32)})
    chances = 1 / ALLOWED.sum(1)
    extras = {"log_prob": np.float32(np.log(chances)), "advantage": np.ones(3, np.float32)}
    metrics = learned(engine, config, **extras, **{"return": np.zeros(3, np.float32)}).metrics
    assert metrics["entropy"] == pytest.approx(-np.log(chances).mean(), rel=1e-5)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy_loss"] == pytest.approx(-1, rel=1e-5)


@pytest.mark.parametrize("given", [None, 0.5])
def test_the_target_entropy_of_discrete_sac_counts_the_actions_that_the_mask_allows(given, engine_name):
    config = DiscreteSACConfig(network=FLAT, learning_rate=0.0, target_entropy=given)
    engine = engine_of("discrete_sac", config, engine_name)
    engine.load({"temperature.value": np.asarray(np.log(2.0), np.float32)})
    update = learned(engine, config)
    entropy = np.log(ALLOWED.sum(1)).mean()  # of a policy that takes all allowed actions alike
    target = 0.6 * entropy if given is None else given
    assert update.metrics["policy_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert update.losses["temperature"] == pytest.approx(-np.log(2.0) * (target - entropy), rel=1e-5)
