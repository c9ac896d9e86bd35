"""What PPO changes between two learning phases: the coefficient of the penalty and the moments of returns."""

from __future__ import annotations

import numpy as np
import pytest

from etude import Mlp
from etude.algorithms import PPO, PPOConfig
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.checkpoint.old_names import present_config, present_state
from etude.engines.numpy import NumpyEngine

SPACES = Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))


def engine_of(**config):
    return NumpyEngine(PPO(PPOConfig(network=Mlp((4,)), **config)), SPACES)


def after(engine, **metrics):
    """The engine's weights after a phase with these metrics."""
    weights = engine.weights()
    engine.load(engine.layout.agent.after_phase(lambda names: {name: weights[name] for name in names}, metrics))
    return engine.weights()


def test_the_coefficient_doubles_above_its_target_and_halves_below():
    engine = engine_of(objective="penalty", kl_target=0.01, kl_coefficient=3.0)
    assert after(engine, approx_kl=0.0151)["objective.kl_coefficient"] == 6.0
    assert after(engine, approx_kl=0.0149)["objective.kl_coefficient"] == 6.0
    assert after(engine, approx_kl=0.0066)["objective.kl_coefficient"] == 3.0


def test_the_moments_are_those_of_all_returns_so_far_and_values_are_in_their_units():
    engine = engine_of(normalize_value=True)
    observation = np.ones((1, 3), np.float32)
    raw = engine.value(observation)[0]
    rng = np.random.default_rng(0)
    phases = [rng.normal(50.0, 20.0, 1_000) for _ in range(3)]
    for returns in phases:
        squared = np.square(returns - engine.weights()["value_normaliser.moments"][0]).mean()
        weights = after(engine, return_mean=returns.mean(), return_squared_deviation=squared)
    mean, deviation, count = weights["value_normaliser.moments"]
    everything = np.concatenate(phases)
    assert (mean, deviation, count) == pytest.approx((everything.mean(), everything.std(), 3), rel=1e-5)
    assert engine.value(observation)[0] == pytest.approx(mean + deviation * raw, rel=1e-5)


def test_a_phase_in_which_no_agent_of_the_policy_acts_changes_neither_the_penalty_nor_the_moments():
    engine = engine_of(objective="penalty", kl_target=0.01, kl_coefficient=3.0, normalize_value=True)
    weights = after(engine, approx_kl=0.0198, return_mean=5.0, return_squared_deviation=34.0)
    assert weights["objective.kl_coefficient"] == 6.0
    np.testing.assert_allclose(weights["value_normaliser.moments"], [5.0, 3.0, 1.0], rtol=1e-6)
    assert all(np.array_equal(value, weights[name]) for name, value in after(engine).items())  # nothing is reported


def test_nothing_changes_where_nothing_adapts():
    engine = engine_of()
    assert engine.layout.agent.after_phase(lambda names: {}, {"approx_kl": 1.0}) == {}


def test_an_unknown_objective_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="objective = 'klip'; expected 'clip' or 'penalty'"):
        PPOConfig(objective="klip")


def test_the_penalty_and_the_moments_of_earlier_versions_are_read_under_their_names_of_today():
    state = {
        "description": {"algorithm": "ppo", "config": {}},
        "engine": {"values": {"penalty.value": 1, "ann.returns.value": 2, "model.critic.dense0.bias": 3}},
    }
    expected = {"objective.kl_coefficient": 1, "ann.value_normaliser.moments": 2, "model.critic.dense0.bias": 3}
    assert present_state(state)["engine"]["values"] == expected
    own = present_state({**state, "description": {"algorithm": "myagent", "config": {}}})
    assert own["engine"] == state["engine"]


def test_the_lambda_of_unrolls_of_earlier_versions_is_that_of_v_trace():
    described = {"algorithm": "impala", "config": {"class": "IMPALAConfig", "lambda_": 0.9}}
    assert present_config(described)["config"] == {"class": "IMPALAConfig", "trace_lambda": 0.9}
    assert present_config({**described, "algorithm": "ppo"})["config"]["gae_lambda"] == 0.9


def test_explorers_of_earlier_versions_are_read_under_their_names_of_today():
    old = {"class": "Each", "explorers": [{"class": "SpreadEpsilonGreedy", "epsilon": 0.4}]}
    found = present_config({"algorithm": "dqn", "config": {}, "explorer": old})["explorer"]
    assert found == {"class": "Each", "explorers": [{"class": "PerActorEpsilonGreedy", "epsilon": 0.4}]}
    assert present_config({"algorithm": "dqn", "config": {}, "explorer": None})["explorer"] is None
