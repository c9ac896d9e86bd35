"""Agents that transform the gradients of their losses: `Agent.transform_gradient`."""

import dataclasses

import numpy as np
import pytest
from batches import random_batches
from cases import BOX2, CASES, VECTOR, Case, made

import etude
from etude import Mlp, engines, ops
from etude.algorithms import DQN, PPO, TD3, DQNConfig, PPOConfig, TD3Config
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Spaces
from etude.optimizers import SGD
from etude.training.assembly.agents import multi_agent_for

pytestmark = pytest.mark.variant("jax")  # TensorFlow: with --whole

SPACES = Spaces(VECTOR, Discrete(3))


@dataclasses.dataclass(frozen=True)
class BoundedConfig(DQNConfig):
    """DQN's, and a bound on each number of a gradient."""

    bound: float = 0.01


def by_value(self, loss, gradient):
    """Clip each number of a gradient."""
    return ops.clip(gradient, -self.config.bound, self.config.bound)


CONFIG = BoundedConfig(network=Mlp((4,)), max_gradient_norm=None, optimizer=SGD())


def applied(engine, hyper, value=1.0):
    """How far each trained weight moves with gradients of `value`."""
    before = engine.layout.as_vector(engine.weights())
    gradients = {name: np.full_like(engine.layout.initial[name], value) for name in engine.layout.trainable}
    update = engine.apply(gradients, {**dict.fromkeys(engine.layout.hyper, 0.0), "target_update_every": 1_000, **hyper})
    return before - engine.layout.as_vector(engine.weights()), update.metrics


def test_a_gradient_is_clipped_by_value_with_the_present_hyperparameter(engine_name):
    engine = engines.create(engine_name, etude.variant(DQN, transform_gradient=by_value)(CONFIG), SPACES)
    for bound in (0.01, 0.25):
        np.testing.assert_allclose(applied(engine, {"learning_rate": 1.0, "bound": bound})[0], bound, rtol=1e-4)
    batches = random_batches(Case("dqn", "dqn", SPACES, CONFIG), 3, 16)
    hyper = {**dict.fromkeys(engine.layout.hyper, 0.0), "learning_rate": 1.0, "bound": 1e-4, "gamma": 0.9}
    before = engine.layout.as_vector(engine.weights())
    engine.learn(batches, {**hyper, "target_update_every": 1_000})
    moved = np.abs(engine.layout.as_vector(engine.weights()) - before)
    assert 2.5e-4 < moved.max() < 3.01e-4


def test_the_norm_is_bounded_after_the_transform(engine_name):
    config = dataclasses.replace(CONFIG, max_gradient_norm=1.0)
    engine = engines.create(engine_name, etude.variant(DQN, transform_gradient=by_value)(config), SPACES)
    moved, metrics = applied(engine, {"learning_rate": 1.0, "bound": 2.0, "max_gradient_norm": 0.5}, value=3.0)
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-3)
    assert metrics["q_gradient_norm"] == pytest.approx(2.0 * len(moved) ** 0.5, rel=1e-4)


def test_each_loss_is_transformed_by_its_name(engine_name):
    def only_critic(self, loss, gradient):
        return gradient if loss == "critic" else 0.0 * gradient

    config = TD3Config(network=Mlp((4,)), policy_delay=1, optimizer=SGD())
    spaces = Spaces(VECTOR, BOX2)
    engine = engines.create(engine_name, etude.variant(TD3, transform_gradient=only_critic)(config), spaces)
    before = engine.weights()
    case = Case("td3", "td3", spaces, config)
    engine.learn(random_batches(case, 2, 16), case.hyper(policy_delay=1))
    moved = {name.split(".")[0] for name, value in engine.weights().items() if not np.array_equal(value, before[name])}
    assert moved == {"critic", "critic_target"}


def test_an_agent_that_passes_gradients_on_learns_as_without(engine_name):
    case = next(case for case in CASES if case.name == "ppo discrete")
    same = etude.variant(PPO, transform_gradient=lambda self, loss, gradient: gradient)(case.config)
    engine, plain = engines.create(engine_name, same, case.spaces), made(case, engine_name)
    plain.restore(engine.state())
    for one in (engine, plain):
        one.learn(random_batches(case, 2, 16), case.hyper())
    for name, value in plain.weights().items():
        np.testing.assert_allclose(engine.weights()[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.variant
def test_each_policy_of_several_transforms_its_own_gradients(engine_name):
    case = next(case for case in CASES if case.name == "ppo, several")
    names = []

    def noted(self, loss, gradient):
        names.append(loss)
        return 0.0 * gradient

    config = PPOConfig(network=Mlp((4,)), optimizer=SGD())
    agent = multi_agent_for(etude.variant(PPO, transform_gradient=noted)(config), case.spaces, None)
    engine = engines.create(engine_name, agent, case.spaces)
    before = engine.layout.as_vector(engine.weights())
    engine.learn(random_batches(case, 1, 16), case.hyper())
    assert set(names) == {"model"} and np.array_equal(engine.layout.as_vector(engine.weights()), before)


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda self, loss, gradient: gradient[:3], r"returned shape \[3\] for the gradient of 'q'; expected a vector"),
        (lambda self, loss, gradient: None, "transform_gradient returned NoneType for the gradient of 'q'"),
    ],
)
def test_what_is_no_gradient_is_refused(engine_name, transform, said):
    engine = engines.create(engine_name, etude.variant(DQN, transform_gradient=transform)(CONFIG), SPACES)
    with pytest.raises(ConfigError, match=said):
        applied(engine, {"learning_rate": 1.0})
