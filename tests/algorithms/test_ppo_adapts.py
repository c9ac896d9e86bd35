"""What PPO changes between two learning phases: the penalty's coefficient, and the moments of returns."""

from __future__ import annotations

import numpy as np
import pytest

from etude import Mlp
from etude.algorithms import PPO, PPOConfig
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
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
    assert after(engine, approx_kl=0.0151)["penalty.value"] == 6.0
    assert after(engine, approx_kl=0.0149)["penalty.value"] == 6.0
    assert after(engine, approx_kl=0.0066)["penalty.value"] == 3.0


def test_the_moments_are_those_of_all_returns_so_far_and_values_are_in_their_units():
    engine = engine_of(normalize_value=True)
    observation = np.ones((1, 3), np.float32)
    raw = engine.value(observation)[0]
    rng = np.random.default_rng(0)
    phases = [rng.normal(50.0, 20.0, 1_000) for _ in range(3)]
    for returns in phases:
        weights = after(engine, return_mean=returns.mean(), return_deviation=returns.std())
    mean, deviation, count = weights["returns.value"]
    everything = np.concatenate(phases)
    assert (mean, deviation, count) == pytest.approx((everything.mean(), everything.std(), 3), rel=1e-5)
    assert engine.value(observation)[0] == pytest.approx(mean + deviation * raw, rel=1e-5)


def test_nothing_changes_where_nothing_adapts():
    engine = engine_of()
    assert engine.layout.agent.after_phase(lambda names: {}, {"approx_kl": 1.0}) == {}


def test_an_unknown_objective_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="objective = 'klip'; expected 'clip' or 'penalty'"):
        PPOConfig(objective="klip")
