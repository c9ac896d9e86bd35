"""Gradients that are handed to an engine by name, wherever they come from; and evolution, which hands them over."""

import numpy as np
import pytest
from cases import VECTOR

from etude import A2C, ES, A2CConfig, Adam, ESConfig, Mlp, engines
from etude.engines.evolution import FromReturns, PerturbedActor, noise_of
from etude.engines.numpy import NumpyEngine
from etude.errors import ConfigError, NetworkError, NumericalError
from etude.replay import Scores
from etude.spaces import Discrete, Spaces

SPACES = Spaces(VECTOR, Discrete(3))
HYPER = {"learning_rate": 0.1, "gamma": 0.9, "lambda_": 1.0, "entropy": 0.0, "value_cost": 0.5}
HYPER |= {"max_gradient_norm": 1.0, "initial_log_std": 0.0, "deviation": 0.5, "weight_decay": 0.1}


def a2c(engine_name):
    return engines.create(engine_name, A2C(A2CConfig(network=Mlp((4,)))), SPACES, seed=1)


def ones(engine):
    weights = engine.weights(engine.structure.trainable)
    return {name: np.ones_like(value) for name, value in weights.items()}


def test_the_first_step_of_adam_moves_every_weight_by_the_learning_rate_and_the_norm_is_told(engine_name):
    engine = a2c(engine_name)
    before, gradients = engine.weights(), ones(engine)
    update = engine.apply(gradients, HYPER)
    for name, value in engine.weights().items():
        np.testing.assert_allclose(before[name] - value, 0.1, rtol=1e-3, err_msg=name)
    size = sum(value.size for value in gradients.values())
    assert update.metrics == pytest.approx({"model_gradient_norm": size**0.5, "model_gradient_clipped": 1.0})
    small = engine.apply({name: value * np.float32(1e-3) for name, value in gradients.items()}, HYPER)
    assert small.metrics["model_gradient_clipped"] == 0.0


def test_steps_by_name_go_on_from_a_restored_state(engine_name):
    engine, again = a2c(engine_name), a2c(engine_name)
    engine.apply(ones(engine), HYPER)
    again.restore(engine.state())
    for one in (engine, again):
        one.apply({name: value * 0.5 for name, value in ones(one).items()}, HYPER)
    for name, value in engine.weights().items():
        assert np.array_equal(value, again.weights()[name]), name


def test_gradients_that_do_not_fit_are_refused(engine_name):
    engine = a2c(engine_name)
    gradients = ones(engine)
    some = dict(list(gradients.items())[1:])
    with pytest.raises(NetworkError, match="expected one of each trained weight"):
        engine.apply(some, HYPER)
    name = next(iter(gradients))
    with pytest.raises(NetworkError, match="shape"):
        engine.apply({**gradients, name: np.zeros((9, 9), np.float32)}, HYPER)
    with pytest.raises(NumericalError, match="not finite"):
        engine.apply({**gradients, name: gradients[name] * np.nan}, HYPER)


def es(**more):
    return ES(ESConfig(network=Mlp((4,)), deviation=0.5, optimizer=Adam(), **more))


def test_a_generation_moves_the_weights_by_what_its_noise_earned(engine_name):
    engine = engines.create(engine_name, es(), SPACES, seed=1)
    before = engine.structure.as_vector(engine.weights())
    scores = Scores(4)
    scores._returns[:] = [3.0, 1.0, -1.0, 7.0]
    update = FromReturns(engine, 5, 4).learn(scores.sample(1, 4), HYPER, 2)
    # Ranks from -1/2 to 1/2 of 3, 1, -1 and 7 are 1/6, -1/6, -1/2 and 1/2; 2 pairs, sigma = 1/2.
    noise = [noise_of(engine.structure, 5, 2, pair) for pair in (0, 1)]
    gradient = 0.005 * before - (noise[0] / 3 - noise[1]) / (2 * 2 * 0.5)
    after = engine.structure.as_vector(engine.weights())
    np.testing.assert_allclose(after - before, -0.1 * np.sign(gradient), rtol=1e-2)
    assert update.metrics["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
    assert update.metrics["return_mean"] == 2.5


def test_each_environment_acts_with_its_own_weights_and_pairs_are_mirrored():
    actor, mean = PerturbedActor(es(), SPACES, 5), NumpyEngine(es(), SPACES)
    weights = mean.weights()
    actor.load({**weights, "generation": np.array(3)})
    observation = np.random.default_rng(0).uniform(-1, 1, (6, 5)).astype(np.float32)
    columns = (0, 1, 3, 2, 7, 0)
    found = actor.act(observation)(columns).logits
    for i, column in enumerate(columns):
        vector = mean.structure.as_vector(weights)
        noise = noise_of(mean.structure, 5, 3, column // 2)
        own = mean.structure.from_vector(vector + (1 - 2 * (column % 2)) * np.float32(0.5) * noise)
        alone = NumpyEngine(es(), SPACES)
        alone.load(own)
        np.testing.assert_allclose(found[i], alone.act(observation[i : i + 1]).logits[0], rtol=1e-5, atol=1e-6)
    assert np.array_equal(actor.act(observation[3:])(columns[3:]).logits, found[3:])
    actor.load({"generation": np.array(4)})
    assert not np.allclose(actor.act(observation)(columns).logits, found)


def test_an_odd_number_of_environments_is_refused(engine_name):
    with pytest.raises(ConfigError, match="environments = 3; .* expected an even number"):
        FromReturns(engines.create(engine_name, es(), SPACES), 0, 3)
