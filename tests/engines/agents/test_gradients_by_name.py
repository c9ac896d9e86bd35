"""Gradients that are handed to an engine by name, wherever they come from; and evolution, which hands them over."""

import numpy as np
import pytest
from cases import VECTOR

from etude import Mlp, engines
from etude.algorithms import A2C, A3C, ES, A2CConfig, A3CConfig, ESConfig
from etude.base import trees
from etude.base.data import Batch, PolicyVersion, WorkerGradients
from etude.base.errors import ConfigError, NetworkError, NumericalError
from etude.base.spaces import Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.engines.parameter_layout import READ_BY_LOSSES
from etude.engines.stacked import FromReturns, PerturbedActor, noise_of
from etude.optimizers import Adam
from etude.replay import Fitness
from etude.training.learner import FromRollouts

SPACES = Spaces(VECTOR, Discrete(3))
HYPER = {"learning_rate": 0.1, "gamma": 0.9, "gae_lambda": 1.0, "entropy_coefficient": 0.0, "value_coefficient": 0.5}
HYPER |= {"max_gradient_norm": 1.0, "initial_log_std": 0.0, "sigma": 0.5, "weight_decay": 0.1}


def a2c(engine_name):
    return engines.create(engine_name, A2C(A2CConfig(network=Mlp((4,)))), SPACES, seed=1)


def ones(engine):
    weights = engine.weights(engine.layout.trainable)
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


def batch_of(engine, reward):
    """Four steps of one environment, all of which earned this advantage and return."""
    observation = np.random.default_rng(2).uniform(-1, 1, (4, 5)).astype(np.float32)
    each = np.full(4, reward, np.float32)
    extras = {"advantage": each, "return": each, "value": 0 * each, "log_prob": 0 * each - 1}
    rows = np.arange(4)
    return Batch(observation, rows % 3, each, each * 0 + np.float32(0.9), None, np.ones(4, np.float32), rows, extras)


def test_gradients_that_are_applied_by_name_are_one_learn_step(engine_name):
    learned, by_name = a2c(engine_name), a2c(engine_name)
    before, batch = by_name.weights(), batch_of(by_name, 2.0)
    gradients, told = by_name.gradients(batch, HYPER)
    assert all(np.array_equal(value, before[name]) for name, value in by_name.weights().items()), "nothing has moved"
    applied = by_name.apply(gradients, HYPER)
    stacked = trees.map(
        lambda x: x[None],
        {field: getattr(batch, field) for field in READ_BY_LOSSES if getattr(batch, field) is not None},
    )
    update = learned.learn(Batch(**{"next_observation": None, "index": None, **stacked}), HYPER)
    assert told.losses == pytest.approx(update.losses, rel=1e-5)
    assert {**told.metrics, **applied.metrics} == pytest.approx(update.metrics, rel=1e-5)
    for name, value in learned.weights().items():
        np.testing.assert_allclose(by_name.weights()[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_gradients_do_not_compile_again_where_a_number_changes_and_a_loss_that_is_not_finite_is_an_error(engine_name):
    engine = a2c(engine_name)
    one, _ = engine.gradients(batch_of(engine, 2.0), HYPER)
    traced = getattr(engine, "traces", None)
    other, _ = engine.gradients(batch_of(engine, 2.0), {**HYPER, "value_coefficient": 0.0})
    assert getattr(engine, "traces", None) == traced
    name = next(name for name in one if name.startswith("model.critic"))
    assert np.abs(one[name]).max() > 0 and not other[name].any()
    with pytest.raises(NumericalError, match="The loss became model = "):
        engine.gradients(batch_of(engine, np.nan), HYPER)


def test_a_gradient_of_older_weights_is_applied_to_the_newer_ones(engine_name):
    engine = engines.create(engine_name, A3C(A3CConfig(network=Mlp((4,)), optimizer=Adam(epsilon=1e-8))), SPACES)
    learner, hyper = FromRollouts(engine), {**HYPER, "max_gradient_norm": 1e6}
    before = engine.weights()
    # Adam with a rate of 0.1, by hand: gradients of 1 move every weight by -0.1. Then gradients of 3, computed before
    # that: m = 0.9 * 0.1 + 0.1 * 3 = 0.39, over 1 - 0.81: 2.0526; v = 0.999 * 0.001 + 0.001 * 9 = 0.009999, over
    # 1 - 0.998001: 5.0020; 0.1 * 2.0526 / 2.2365 = 0.09178 more.
    for factor, moved, age in ((1.0, 0.1, 0.0), (3.0, 0.19178, 1.0)):
        gradients = {name: factor * value for name, value in ones(engine).items()}
        found = WorkerGradients(5, (), gradients, {"model": factor}, {"entropy": 0.5}, gradient_steps=7)
        update = learner(found, hyper, 7 + int(age))
        assert update.losses == {"model": factor}
        assert update.metrics["entropy"] == 0.5 and update.metrics["gradient_age"] == age
        for name, value in engine.weights().items():
            np.testing.assert_allclose(before[name] - value, moved, rtol=1e-3, err_msg=name)


def es(**more):
    return ES(ESConfig(network=Mlp((4,)), sigma=0.5, optimizer=Adam(), **more))


def test_a_generation_moves_the_weights_by_what_its_noise_earned(engine_name):
    engine = engines.create(engine_name, es(), SPACES, seed=1)
    before = engine.layout.as_vector(engine.weights())
    scores = Fitness(4)
    scores._returns[:] = [3.0, 1.0, -1.0, 7.0]
    update = FromReturns(engine, 5, 4)(scores.sample(1, 4), HYPER, 2)
    # Ranks from -1/2 to 1/2 of 3, 1, -1 and 7 are 1/6, -1/6, -1/2 and 1/2; 2 pairs, sigma = 1/2.
    noise = [noise_of(engine.layout, 5, 2, pair) for pair in (0, 1)]
    gradient = 0.005 * before - (noise[0] / 3 - noise[1]) / (2 * 2 * 0.5)
    after = engine.layout.as_vector(engine.weights())
    np.testing.assert_allclose(after - before, -0.1 * np.sign(gradient), rtol=1e-2)
    assert update.metrics["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
    assert update.metrics["return_mean"] == 2.5


def test_each_environment_acts_with_its_own_weights_and_pairs_are_mirrored():
    actor, mean = PerturbedActor(es(), SPACES, 5), NumpyEngine(es(), SPACES)
    weights = mean.weights()
    actor.load(weights, PolicyVersion(3, {}))
    observation = np.random.default_rng(0).uniform(-1, 1, (6, 5)).astype(np.float32)
    columns = (0, 1, 3, 2, 7, 0)
    found = actor.act(observation)(columns).logits
    for i, column in enumerate(columns):
        vector = mean.layout.as_vector(weights)
        noise = noise_of(mean.layout, 5, 3, column // 2)
        own = mean.layout.from_vector(vector + (1 - 2 * (column % 2)) * np.float32(0.5) * noise)
        alone = NumpyEngine(es(), SPACES)
        alone.load(own)
        np.testing.assert_allclose(found[i], alone.act(observation[i : i + 1]).logits[0], rtol=1e-5, atol=1e-6)
    assert np.array_equal(actor.act(observation[3:])(columns[3:]).logits, found[3:])
    actor.load({}, PolicyVersion(4, {}))
    assert not np.allclose(actor.act(observation)(columns).logits, found)


def test_an_odd_number_of_environments_is_refused(engine_name):
    with pytest.raises(ConfigError, match="environments = 3; .* expected an even number"):
        FromReturns(engines.create(engine_name, es(), SPACES), 0, 3)
