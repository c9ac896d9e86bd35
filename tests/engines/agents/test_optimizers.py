"""Optimizers on one engine: against their formulas in float64, and against those of torch and Keras."""

import copy
import dataclasses

import numpy as np
import pytest
from batches import random_batches
from cases import VECTOR, Case
from run_cases import DQN_TINY, differences

import etude
from etude import Mlp, Run, engines
from etude.adapt import Adapt
from etude.algorithms import DQN, TD3, DQNConfig, PPOConfig, TD3Config
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.cli.train import Train, with_hyperparameters
from etude.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Lion, RMSProp

STEPS = 20
RATES = np.linspace(1e-2, 2e-3, STEPS)
EACH = {
    "adam": Adam(epsilon=1e-5),
    "adamw": AdamW(weight_decay=0.1),
    "rmsprop": RMSProp(0.9, 1e-3),
    "rmsprop, centered": RMSProp(0.9, 1e-3, centered=True),
    "sgd": SGD(),
    "momentum": SGD(0.9),
    "nesterov": SGD(0.9, nesterov=True),
    "lion": Lion(weight_decay=0.1),
}
every_optimizer = pytest.mark.parametrize("optimizer", EACH.values(), ids=EACH)


def dqn(engine_name, optimizer, seed=1, rules=()):
    config = DQNConfig(network=Mlp((4,)), max_gradient_norm=None, optimizer=optimizer, adapt=rules)
    return engines.create(engine_name, DQN(config), Spaces(VECTOR, Discrete(3)), seed=seed)


def random_gradients(engine):
    rng = np.random.default_rng(4)
    shapes = {name: engine.layout.initial[name].shape for name in engine.layout.trainable}
    return [{name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()} for _ in RATES]


def stepped(engine, gradients, settings=None):
    """The trained weights [P] after steps with these gradients. settings: of the optimizer, that rules change."""
    still = dict.fromkeys(engine.layout.hyper, 0.0) | {"target_update_every": 1_000_000} | (settings or {})
    for rate, each in zip(RATES, gradients, strict=False):
        engine.apply(each, {**still, "learning_rate": float(np.float32(rate))})
    return engine.layout.as_vector(engine.weights())


class ByHand:
    """One step after the other in float64, from the formulas in the docstrings of `etude.optimizers`."""

    def __init__(self, optimizer, weights):
        self.of, self.w = optimizer, weights.astype(np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, rate, g, t):
        name = type(self.of).__name__
        getattr(self, name.lower())(self.of, float(np.float32(rate)), g.astype(np.float64), t)

    def adam(self, of, rate, g, t):
        self.m += (1 - of.beta1) * (g - self.m)
        self.v += (1 - of.beta2) * (g**2 - self.v)
        corrected = self.m / (1 - of.beta1**t), self.v / (1 - of.beta2**t)
        self.w -= rate * corrected[0] / (np.sqrt(corrected[1]) + of.epsilon)

    def adamw(self, of, rate, g, t):
        before = self.w.copy()
        self.adam(of, rate, g, t)
        self.w -= rate * of.weight_decay * before

    def rmsprop(self, of, rate, g, t):
        self.v += (1 - of.decay) * (g**2 - self.v)
        self.m += (1 - of.decay) * (g - self.m)
        self.w -= rate * g / np.sqrt(self.v - (self.m**2 if of.centered else 0) + of.epsilon)

    def sgd(self, of, rate, g, t):
        self.m = of.momentum * self.m + g
        self.w -= rate * (g + of.momentum * self.m if of.nesterov else self.m)

    def lion(self, of, rate, g, t):
        self.w -= rate * (np.sign(of.beta1 * self.m + (1 - of.beta1) * g) + of.weight_decay * self.w)
        self.m += (1 - of.beta2) * (g - self.m)


def assert_equal(found, expected, optimizer):
    """To a millionth; to two where biases are corrected, as 1 - 0.999**t is rounded to float32."""
    bound = 2e-6 if isinstance(optimizer, Adam) else 1e-6
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()


@every_optimizer
def test_twenty_steps_are_those_of_the_formula_to_a_millionth(engine_name, optimizer):
    engine = dqn(engine_name, optimizer)
    start, gradients = engine.layout.as_vector(engine.weights()), random_gradients(engine)
    expected = ByHand(optimizer, start)
    for i, each in enumerate(gradients):
        expected.step(RATES[i], engine.layout.as_vector(each), i + 1)
    found = stepped(engine, gradients)
    assert np.abs(found - start).max() > 0.01
    assert_equal(found, expected.w, optimizer)


def test_moments_of_slow_decay_are_corrected_to_a_millionth_from_the_first_step_on(engine_name):
    optimizer = Adam(beta1=0.0, beta2=0.9999, epsilon=1e-12)
    engine = dqn(engine_name, optimizer)
    start, gradients = engine.layout.as_vector(engine.weights()), random_gradients(engine)
    expected = ByHand(optimizer, start)
    for i, each in enumerate(gradients[:3]):
        expected.step(RATES[i], engine.layout.as_vector(each), i + 1)
    moved = stepped(engine, gradients[:3]) - start
    np.testing.assert_allclose(moved, expected.w - start, rtol=5e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [Adam, AdamW, Lion])
def test_steps_with_settings_that_rules_change_are_those_of_an_optimizer_made_with_them(engine_name, kind):
    values = {"optimizer.beta1": 0.5, "optimizer.beta2": 0.75}
    values |= {} if kind is Adam else {"optimizer.weight_decay": 0.125}
    rules = tuple(Adapt("noise_scale", name) for name in values)
    made_with = {name.removeprefix("optimizer."): value for name, value in values.items()}
    ruled = dqn(engine_name, kind(**dict.fromkeys(made_with, 0.25)), rules=rules)
    plain = dqn(engine_name, kind(**made_with))
    assert set(ruled.layout.hyper) - set(plain.layout.hyper) == set(values)
    gradients = random_gradients(plain)
    np.testing.assert_allclose(stepped(ruled, gradients, values), stepped(plain, gradients), rtol=1e-6, atol=1e-6)


TORCHS = {
    "adam": lambda optim, w: optim.Adam(w, eps=1e-5),
    "adamw": lambda optim, w: optim.AdamW(w, weight_decay=0.1),
    # torch adds epsilon outside of the root: both are without one.
    "rmsprop": lambda optim, w: optim.RMSprop(w, alpha=0.9, eps=0.0),
    "rmsprop, centered": lambda optim, w: optim.RMSprop(w, alpha=0.9, eps=0.0, centered=True),
    "sgd": lambda optim, w: optim.SGD(w),
    "momentum": lambda optim, w: optim.SGD(w, momentum=0.9),
    "nesterov": lambda optim, w: optim.SGD(w, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("name", TORCHS)
def test_twenty_steps_are_those_of_torch(engine_name, name):
    if engine_name != "torch":
        pytest.skip("one engine beside torch's own optimizers")
    import torch

    optimizer = EACH[name]
    if isinstance(optimizer, RMSProp):
        optimizer = dataclasses.replace(optimizer, epsilon=1e-30)
    engine = dqn(engine_name, optimizer)
    gradients = random_gradients(engine)
    weights = torch.tensor(engine.layout.as_vector(engine.weights()), dtype=torch.float64, requires_grad=True)
    theirs = TORCHS[name](torch.optim, [weights])
    for rate, each in zip(RATES, gradients, strict=True):
        theirs.param_groups[0]["lr"] = float(np.float32(rate))
        weights.grad = torch.tensor(engine.layout.as_vector(each), dtype=torch.float64)
        theirs.step()
    if name == "rmsprop, centered":  # v - m**2 loses digits in float32
        np.testing.assert_allclose(stepped(engine, gradients), weights.detach().numpy(), rtol=1e-4, atol=1e-5)
    else:
        assert_equal(stepped(engine, gradients), weights.detach().numpy(), optimizer)


@pytest.mark.parametrize("name", ["rmsprop", "rmsprop, centered", "lion"])
def test_twenty_steps_are_those_of_keras(engine_name, name):
    if engine_name == "torch":
        pytest.skip("Keras runs on the other engines")
    import keras

    optimizer = EACH[name]
    engine = dqn(engine_name, optimizer)
    gradients = random_gradients(engine)
    weights = keras.Variable(engine.layout.as_vector(engine.weights()))
    if isinstance(optimizer, Lion):
        theirs = keras.optimizers.Lion(1.0, optimizer.beta1, optimizer.beta2, weight_decay=0.1)
    else:
        theirs = keras.optimizers.RMSprop(1.0, optimizer.decay, 0.0, optimizer.epsilon, optimizer.centered)
    for rate, each in zip(RATES, gradients, strict=True):
        theirs.learning_rate = float(np.float32(rate))
        theirs.apply([keras.ops.convert_to_tensor(engine.layout.as_vector(each))], [weights])
    expected = keras.ops.convert_to_numpy(weights)
    np.testing.assert_allclose(stepped(engine, gradients), expected, rtol=1e-5, atol=2e-6)


@every_optimizer
def test_an_engine_goes_on_from_a_saved_state_bit_for_bit_and_refuses_one_of_another_optimizer(engine_name, optimizer):
    engine, again = dqn(engine_name, optimizer), dqn(engine_name, optimizer, seed=9)
    gradients = random_gradients(engine)
    stepped(engine, gradients)
    state = engine.state()
    assert set(state) == {"values", *optimizer.averages, *optimizer.squares, "step", "noise"}
    again.check_state(Stored(state, "engine"))
    again.restore(state)
    assert np.array_equal(stepped(engine, gradients), stepped(again, gradients))
    other = SGD(0.5) if "momentum" not in state else Adam()
    with pytest.raises(CheckpointError, match=r"another optimizer \(engine\)|at engine; expected"):
        dqn(engine_name, other).check_state(Stored(state, "engine"))
    for moment in (*optimizer.averages, *optimizer.squares):
        wrong = copy.deepcopy(state)
        wrong[moment]["q.dense0.weight"] = -1e30 * np.ones_like(wrong[moment]["q.dense0.weight"])
        with pytest.raises(CheckpointError, match=f"engine/{moment}/q.dense0.weight"):
            again.check_state(Stored(wrong, "engine"))


@pytest.mark.variant("jax")
@pytest.mark.parametrize("optimizer", [RMSProp(centered=True), SGD(0.9)], ids=["rmsprop", "sgd"])
def test_a_run_goes_on_from_its_file_with_its_optimizer(engine_name, optimizer, tmp_path):
    config = dataclasses.replace(DQN_TINY, optimizer=optimizer, learning_rate=1e-2, epsilon=0.1)
    given = {"config": config, "engine": engine_name, "seed": 3}
    with Run("dqn", "CartPole-v1", **given) as whole, Run("dqn", "CartPole-v1", **given) as half:
        whole.train(96)
        half.train(64)
        half.save(tmp_path / "half.etude")
        with etude.load(tmp_path / "half.etude") as rest:
            rest.train(32)
            assert rest.agent.config.optimizer == optimizer
            assert differences(rest.state(), whole.state()) == []


@pytest.mark.variant("jax")
def test_losses_that_are_trained_less_often_count_their_own_updates(engine_name):
    """Adam corrects by the number of a loss's own updates: the first one of the actor, at the second gradient step,
    moves each weight by the rate."""
    config = TD3Config(network=Mlp((4,)), policy_delay=2, optimizer=AdamW(weight_decay=0.0), max_gradient_norm=None)
    spaces = Spaces(VECTOR, Box(-1.0, 1.0, (2,), np.float32))
    case = Case("td3", "td3", spaces, config)
    engine, plain = (
        engines.create(engine_name, TD3(dataclasses.replace(config, optimizer=each)), spaces)
        for each in (config.optimizer, Adam())
    )
    for one in (engine, plain):
        one.learn(random_batches(case, 3, 16), case.hyper(policy_delay=2))
    for name, value in plain.weights().items():
        np.testing.assert_allclose(engine.weights()[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("saved", [False, True])
def test_losses_that_are_trained_at_other_steps_from_now_on_go_on_counting(saved, engine_name):
    """With rates of 1e-3 and equal gradients Adam moves by the rate, whatever its moments are, where the count of its
    updates is right; three of the actor after six steps, then one at every step."""
    config = TD3Config(network=Mlp((4,)), policy_delay=2, max_gradient_norm=None)
    spaces = Spaces(VECTOR, Box(-1.0, 1.0, (2,), np.float32))
    case = Case("td3", "td3", spaces, config)
    engine = engines.create(engine_name, TD3(config), spaces)
    batches = random_batches(case, 1, 16)
    rates, hyper = set(engine.layout.rates.values()), case.hyper(tau=0.0)
    for _ in range(6):
        engine.learn(batches, {**hyper, **dict.fromkeys(rates, 0.0), "policy_delay": 2})
    if saved:
        state = engine.state()
        engine = engines.create(engine_name, TD3(dataclasses.replace(config, policy_delay=1)), spaces)
        engine.restore(state)
    before = engine.weights()
    engine.learn(batches, {**hyper, **dict.fromkeys(rates, 1e-3), "policy_delay": 1})
    moved = [np.abs(engine.weights()[name] - before[name]) for name in before if name.startswith("actor.")]
    largest = max(x.max() for x in moved)
    assert largest == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.variant
def test_the_command_line_offers_every_optimizer_with_its_options():
    from typing import get_args, get_type_hints

    assert set(get_args(get_type_hints(Train)["optimizer"])) == {"auto", *OPTIMIZERS}
    for name, kind in OPTIMIZERS.items():
        found = with_hyperparameters("ppo", "CartPole-v1", optimizer=name)().set
        assert found.optimizer == (Adam(epsilon=1e-5) if name == "adam" else kind())
        assert dataclasses.replace(found, optimizer=Adam(epsilon=1e-5)) == etude.config("ppo", "CartPole-v1")


@pytest.mark.variant
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SGD(1.0), "SGD: momentum = 1.0; expected numbers below 1"),
        (lambda: SGD(nesterov=True), "SGD: nesterov = True, momentum = 0; expected a momentum above 0"),
        (lambda: RMSProp(epsilon=0.0), "RMSProp: epsilon = 0.0; expected a number above 0"),
        (lambda: AdamW(weight_decay=-1.0), "AdamW: weight_decay = -1.0; expected a number of at least 0"),
        (lambda: Lion(beta2=2.0), "Lion: beta2 = 2.0; expected a number from 0 to 1"),
        (lambda: PPOConfig(optimizer="sgd"), r"PPOConfig: optimizer = 'sgd'; expected one of .* Adam\(\), AdamW\(\)"),
        (lambda: PPOConfig(optimizer=SGD), "expected one of etude.optimizers"),
    ],
)
def test_what_is_no_optimizer_or_out_of_bounds_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
