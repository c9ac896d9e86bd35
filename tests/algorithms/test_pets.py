"""How PETS plans: what a plan is worth, which plans are kept, and what its config refuses."""

import dataclasses

import numpy as np
import pytest
from gymnasium.spaces import Box

import etude
from etude import Mlp, ops
from etude.algorithms import PETS, PETSConfig
from etude.base.errors import ConfigError, SpaceError
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine

SPACES = Spaces(Box(-1.0, 1.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32))
CONFIG = PETSConfig(network=Mlp((8,)), n_models=3, horizon=4, n_plans=256, n_elites=32, least_std=0.01)


class Given(PETS):
    """A model that is given: states move by the first action, and the reward is best where both actions fit them."""

    def predict(self, state, action):
        reward = -np.square(action[..., :1] - 0.5) - np.square(action[..., 1:] + state[..., :1])
        change = np.concatenate([0.2 * action[..., :1], np.zeros_like(state[..., 1:])], -1)
        mean = np.concatenate([change, reward], -1)
        return mean, np.full_like(mean, -20.0), np.full_like(mean[..., 0], -20.0)


def engine_with(agent, scale=0.3):
    engine, rng = NumpyEngine(agent, SPACES), np.random.default_rng(1)
    engine.load(
        {n: x + np.float32(scale) * rng.standard_normal(x.shape, np.float32) for n, x in engine.weights().items()}
    )
    return engine


def test_the_value_of_a_plan_is_that_of_a_slow_program_that_rolls_each_model_out():
    config = dataclasses.replace(CONFIG, normalize_observation=False)
    agent = (engine := engine_with(PETS(config))).layout.bind(engine.weights())
    rng = np.random.default_rng(2)
    state = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
    plans = rng.uniform(-1, 1, (2, 5, 4, 2)).astype(np.float32)
    found, w, drawn = agent.value_of(state, plans), engine.weights(), engine.weights()["particles.value"]

    def predicted(e, x):
        for i in range(2):
            x = x @ w[f"model.network.dense{i}.weight"][e] + w[f"model.network.dense{i}.bias"][e, 0]
            x = np.maximum(x, 0) if i == 0 else x
        most, least = w["model.most.value"], w["model.least.value"]
        capped = most - np.log1p(np.exp(most - x[4:8]))
        return x[:4], least + np.log1p(np.exp(capped - least)), x[8]

    for n in range(2):
        for s in range(5):
            totals = []
            for e in range(3):
                x, total, goes_on = state[n], 0.0, 1.0
                for t in range(4):
                    mean, log_variance, end = predicted(e, np.append(x, plans[n, s, t]))
                    total += goes_on * mean[3]
                    goes_on *= config.gamma / (1 + np.exp(end))
                    x = x + mean[:3] + np.exp(log_variance[:3] / 2) * drawn[t, e, 0]
                totals.append(total)
            assert found[n, s] == pytest.approx(np.mean(totals), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_plans_are_refitted_to_the_best_ones_by_either_rule(temperature):
    config = dataclasses.replace(CONFIG, normalize_observation=False, plan_temperature=temperature, horizon=2)
    engine = NumpyEngine(Given(config), SPACES)
    states = np.array([[0.0, 0.0, 0.0], [0.4, 0.0, 0.0]], np.float32)
    found = engine.act(states)
    np.testing.assert_allclose(found.mean, [[0.5, 0.0], [0.5, -0.4]], atol=0.12)
    once = NumpyEngine(Given(dataclasses.replace(config, iterations=1)), SPACES).act(states)
    assert (found.log_std < once.log_std).all()


def test_random_shooting_takes_the_best_of_one_draw():
    config = dataclasses.replace(CONFIG, normalize_observation=False, iterations=1, n_elites=1)
    engine = engine_with(PETS(config))
    state = np.array([[0.3, -0.2, 0.1]], np.float32)
    agent = engine.layout.bind(engine.weights())
    plans = np.clip(config.largest_std * engine.weights()["drawn.value"][0], -1, 1)
    best = plans[np.argmax(agent.value_of(state, plans[None])[0])]
    found = engine.act(state)
    np.testing.assert_allclose(found.mean[0], best[0], atol=1e-5)
    np.testing.assert_allclose(found.log_std, np.log(config.least_std), atol=1e-5)


def test_models_of_no_experience_plan_broadly():
    found = NumpyEngine(PETS(CONFIG), SPACES).act(np.ones((2, 3), np.float32))
    assert (np.exp(found.log_std) > 0.4).all() and (np.abs(found.mean) < 0.15).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_step": 3}, "models predict one step. Leave it at 1"),
        ({"n_elites": 257}, "expected at most all of them"),
        ({"horizon": 0}, "horizon = 0"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changed)


@pytest.mark.parametrize("network", [etude.Conv(), lambda: None])
def test_networks_without_a_state_for_each_model_are_refused(network):
    with pytest.raises(ConfigError, match="only specs of dense layers can"):
        NumpyEngine(PETS(dataclasses.replace(CONFIG, network=network)), SPACES)


def test_images_are_refused_with_what_to_take():
    with pytest.raises(SpaceError, match="Take td_mpc2 or dreamer_v3"):
        NumpyEngine(PETS(CONFIG), Spaces(Box(0, 255, (16, 16, 3), np.uint8), SPACES.action))


class Still(PETS):
    """A known model, of a world in which nothing happens, with variances of 1."""

    def predict(self, state, action):
        zero = ops.zeros_like(ops.concatenate([state, action], -1))
        return zero, zero, zero[..., 0] - 20.0


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_known_model_is_compared_with_what_happens_while_a_run_trains(engine):
    config = dataclasses.replace(
        CONFIG, horizon=2, n_plans=8, n_elites=2, iterations=1, batch_size=16, learning_starts=20
    )
    found = []
    with etude.Run(Still(config), "Pendulum-v1", seed=1, engine=engine) as run:
        run.train(
            30, [lambda event: found.append(event.metrics) if isinstance(event, etude.base.events.Learned) else 0]
        )
    assert found
    for metrics in found:  # 3 numbers of the state and the reward, each with a likelihood of its squared error
        assert metrics["negative_log_likelihood"] == pytest.approx(4 * metrics["prediction_error"], rel=1e-5)
