"""Golden rows and gradients on one engine. Gradients are held against finite differences in NumPy."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS
from golden import ROWS, check, evaluate

from etude import ops
from etude.losses import adversarial, distributional, offline, policy, returns, soft, value
from etude.losses.distributions import Bernoullis, Categorical, Gaussian, TanhGaussian
from etude.losses.masks import MaskedValues

FIXED = np.random.default_rng(9).normal(size=(5, 3)).astype(np.float32)


def fixed(x):
    """FIXED, as an array of x's framework."""
    return ops.where(np.ones_like(FIXED, bool), FIXED, x)


def column(x):
    """[T] as one trajectory [T, 1]."""
    return x[:, None]


def categorical(x):
    support = ops.linspace(-1.0, 1.0, 3, x)
    loss = distributional.categorical_td(x, fixed(x)[:, 0], fixed(x)[:, 1], fixed(x), support)
    return loss + distributional.expected_values(x, support)


def quantile_regression(x, width):
    loss = distributional.quantile_regression(2 * x, fixed(x), ops.linspace(1 / 6, 5 / 6, 3, x), width)
    return loss + ops.square(distributional.quantile_error(x, fixed(x)))


DIFFERENTIABLE = {
    "activations": lambda x: ops.gelu(x) + ops.silu(x) + ops.elu(x) + ops.softplus(x) + ops.sigmoid(x) * ops.tanh(x),
    "reductions": lambda x: ops.logsumexp(x) + ops.std(x, -1) + ops.max(x, -1) * ops.min(x, -1),
    "recurrence": lambda x: ops.linear_recurrence(x, ops.sigmoid(x), x[0]),
    "huber": lambda x: value.huber(2 * x),
    "categorical entropy": lambda x: Categorical(x).entropy(),
    "categorical divergence": lambda x: Categorical(x).kl(Categorical(0.5 * x)),
    "bernoullis": lambda x: Bernoullis(x).entropy() + Bernoullis(x).kl(Bernoullis(-x)),
    "gaussian": lambda x: Gaussian(x, 0.5 * x).log_prob(x * x) + Gaussian(x, x).kl(Gaussian(-x, 0.3 * x)),
    "squashed sample": lambda x: sum(TanhGaussian(x[:, :1], 0.3 * x[:, 1:2]).sample_with_log_prob(x[:, 2:] * 0 + 0.7)),
    "squashed log_prob": lambda x: TanhGaussian(x, 0.3 * x).log_prob(ops.tanh(1.5 * x)),
    "ppo_clip": lambda x: policy.ppo_clip(x[:, 0], ops.ones_like(x[:, 0]), 0.2),
    "value_clip": lambda x: policy.value_clip(x[:, 0], ops.zeros_like(x[:, 0]), ops.ones_like(x[:, 0]), 0.2),
    "soft_actor": lambda x: soft.soft_actor(soft.minimum(x), x[0], 0.3),
    "soft_value": lambda x: soft.soft_value(x, Categorical(-x), 0.3),
    "soft_discrete_actor": lambda x: soft.soft_discrete_actor(fixed(x), Categorical(x), 0.3),
    "ppo_penalty": lambda x: policy.ppo_penalty(x[:, 0], ops.ones_like(x[:, 0]), Categorical(x).kl(Categorical(-x)), 2),
    "temperature_dual": lambda x: policy.temperature_dual(fixed(x), -ops.square(fixed(x)), ops.exp(x[0, 0]), 0.3),
    "multiplier_dual": lambda x: policy.multiplier_dual(fixed(x), ops.exp(x[0, 0]), 0.3),
    "projection": lambda x: distributional.project(0.3 * x, x, ops.linspace(-1.0, 1.0, 4, x))[:, 1],
    "categorical distributions of returns": categorical,
    "quantile_regression": lambda x: quantile_regression(x, 1.0),
    "quantile_regression, kappa 0": lambda x: quantile_regression(x, 0.0),
    "expectile": lambda x: offline.expectile(x, 0.7),
    "cql_gap": lambda x: offline.cql_gap(x, ops.argmax(fixed(x))),
    "cql_sampled_gap": lambda x: offline.cql_sampled_gap(ops.stack([x, -x]), fixed(x), ops.stack([x, x])[..., 0]),
    "marwil": lambda x: offline.marwil(x, fixed(x), 2.0, 1.5),
    "action_error": lambda x: offline.action_error(ops.tanh(x), fixed(x)),
    "rescaled": lambda x: value.rescaled(5 * x) + value.unscaled(x),
    "binary_cross_entropy": lambda x: distributional.binary_cross_entropy(x, ops.cast(fixed(x) > 0, "float32")),
    "airl_logits": lambda x: ops.square(adversarial.airl_logits(x, 0.9, x * x, 3 * x, fixed(x))),
}

# (function of arrays [B], which of them carry a gradient)
STOPPED = {
    "td": (value.td, [True, False, False, False]),
    "policy_gradient": (policy.policy_gradient, [True, False]),
    "ppo_clip": (lambda log_ratio, advantage: policy.ppo_clip(0.01 * log_ratio, advantage, 0.2), [True, False]),
    "value_clip": (lambda v, old, target: policy.value_clip(v, old, target, 0.2), [True, False, False]),
    "soft_target": (soft.soft_target, [False, False, False, False, False]),
    "soft_actor": (soft.soft_actor, [True, True, False]),
    "soft_temperature": (lambda log_temperature, p: soft.soft_temperature(log_temperature, p, -2.0), [True, False]),
    "soft_discrete_actor": (
        lambda q, x, t: soft.soft_discrete_actor(q[None], Categorical(x[None]), t[0]),
        [False, True, False],
    ),
    "ppo_penalty": (lambda ratio, gain, kl: policy.ppo_penalty(ratio, gain, kl, 0.5), [True, False, True]),
    "categorical_td": (
        lambda x, r, d, y: distributional.categorical_td(x[None], r[:1], d[:1], y[None], ops.linspace(-1.0, 1.0, 6, x)),
        [True, False, False, False],
    ),
    "quantile_regression": (
        lambda x, y: distributional.quantile_regression(x[None], y[None], ops.linspace(0.1, 0.9, 6, x), 1.0),
        [True, False],
    ),
    "quantile_error": (lambda x, y: distributional.quantile_error(x[None], y[None]), [True, False]),
    "vtrace": (lambda *x: returns.vtrace(*map(column, x), 0.9, 1.0, 1.0), [False] * 4),
    "vtrace_advantages": (lambda *x: returns.vtrace_advantages(*map(column, x), 0.9, 1.0), [False] * 5),
    "retrace": (lambda *x: returns.retrace(*map(column, x), 0.9), [False] * 4),
    "exponential_weight": (lambda x: offline.exponential_weight(x, 2.0, 100.0), [False]),
    "marwil": (lambda p, gain, scale: offline.marwil(p, gain, 2.0, 1 + scale * scale), [True, False, False]),
    "running_square": (lambda square, gain: offline.running_square(square, gain, 0.1), [False, False]),
    "td3_bc": (lambda q, x, y: offline.td3_bc(q, x[:, None], y[:, None], 2.0), [True, True, False]),
    "rebrac_actor": (lambda q, x, y: offline.rebrac_actor(q, x[:, None], y[:, None], 2.0), [True, True, False]),
    "cql_sampled_gap": (
        lambda x, p, q: offline.cql_sampled_gap(x[None, None], p[None], q[None, :1]),
        [True, False, True],
    ),
    "sequence_priority": (lambda x: value.sequence_priority(x[None], ops.ones_like(x[None])), [False]),
    "gail_reward": (adversarial.gail_reward, [False]),
    "log_reward": (adversarial.log_reward, [False]),
    "log_odds_reward": (adversarial.log_odds_reward, [False]),
    "airl_logits": (adversarial.airl_logits, [True, True, True, True, False]),
}


@pytest.fixture(scope="module")
def framework(engine_name):
    return FRAMEWORKS[engine_name]()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def finite_differences(function, x, step=1e-6):
    x = x.astype(np.float64)
    gradient = np.empty_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (np.sum(function(up)) - np.sum(function(down))) / (2 * step)
    return gradient


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_golden_row_comes_out_in_float32(row, framework):
    result = framework.numpy(evaluate(row, framework.array))
    assert result.dtype == np.float32
    check(row, result)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_is_that_of_finite_differences(name, framework):
    x = numbers(5, 3)
    (gradient,) = framework.gradients(DIFFERENTIABLE[name], x)
    np.testing.assert_allclose(gradient, finite_differences(DIFFERENTIABLE[name], x), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", STOPPED)
def test_no_gradient_flows_into_targets(name, framework):
    function, carried = STOPPED[name]
    gradients = framework.gradients(function, *(numbers(6, seed=i) for i in range(len(carried))))
    assert [bool(np.any(gradient != 0)) for gradient in gradients] == carried


@pytest.mark.parametrize("size", [3, 64, 1000, 32_768])
def test_equal_numbers_are_standardised_to_zero_whatever_the_rounding_of_their_mean(size, framework):
    for number in np.float32([0.1, -7.3, 1e-3, 12_345.678]):
        x, weight = np.full(size, number), np.ones(size, np.float32)
        for given in ((x,), (x, weight)):
            found = policy.standardise(*(framework.array(each) for each in given))
            np.testing.assert_array_equal(framework.numpy(found), 0)


def test_a_number_that_alone_has_a_weight_stays_as_it_is_as_does_one_that_is_alone(framework):
    """A deviation of 0 would say nothing of it, and teach nothing."""
    for given in (
        ([2.5], [1.0]), ([-3.0, 1.0, 7.0, 0.5], [0.0, 0.0, 4.0, 0.0]), ([0.1] * 64, [64.0] + [0.0] * 63),
    ):  # fmt: skip
        x, weight = (np.float32(each) for each in given)
        found = framework.numpy(policy.standardise(framework.array(x), framework.array(weight)))
        np.testing.assert_array_equal(found[weight > 0], x[weight > 0])
    np.testing.assert_array_equal(framework.numpy(policy.standardise(framework.array(np.float32([2.5])))), [2.5])
    equal, weight = (framework.array(np.float32(each)) for each in ([3, 3, 9], [1.5, 1.5, 0]))
    np.testing.assert_array_equal(framework.numpy(policy.standardise(equal, weight))[:2], 0)


def test_double_q_moves_the_value_of_the_action_alone(framework):
    def loss(q, next_q, selector):
        ones = ops.ones_like(q[:, 0])
        return value.double_q(q, ops.argmax(0.5 * selector), ones, ones, next_q, selector)

    q, following, selector = framework.gradients(loss, numbers(4, 3), numbers(4, 3, seed=1), numbers(4, 3, seed=2))
    expected = np.zeros((4, 3))
    expected[np.arange(4), numbers(4, 3, seed=2).argmax(1)] = -1
    np.testing.assert_array_equal(q, expected)
    assert not following.any()
    assert not selector.any()


def test_categorical_q_learning_moves_the_distribution_of_the_action_alone(framework):
    def loss(logits, next_logits, selector):
        ones, support = ops.ones_like(selector[:, 0]), ops.linspace(-1.0, 1.0, 4, logits)
        action = ops.argmax(0.5 * selector)
        return distributional.categorical_q_learning(logits, action, ones, 0.5 * ones, next_logits, selector, support)

    selector = numbers(5, 3, seed=2)
    logits, following, choosing = framework.gradients(loss, numbers(5, 3, 4), numbers(5, 3, 4, seed=1), selector)
    np.testing.assert_array_equal(logits.any(-1), np.eye(3, dtype=bool)[selector.argmax(1)])
    np.testing.assert_allclose(logits.sum(-1), 0, atol=1e-6)
    assert not following.any()
    assert not choosing.any()


def test_the_normaliser_of_td3_bc_is_a_constant_to_the_gradient(framework):
    q, action = numbers(6), numbers(6, 2, seed=1)
    found, pulled, _ = framework.gradients(lambda q, *x: offline.td3_bc(q, *x, 2.5), q, action, 0 * action)
    np.testing.assert_allclose(found, np.full(6, -2.5 / np.abs(q).mean()), rtol=1e-5)
    np.testing.assert_allclose(pulled, action, rtol=1e-5)


def test_masked_choices_have_finite_gradients_and_are_never_sampled(framework):
    mask = np.array([[1, 0, 1, 0], [0, 0, 1, 0]], bool)

    def loss(x):
        policy = Categorical(x, framework.array(mask))
        soft_losses = soft.soft_value(ops.stop_gradient(x), policy, 0.5) + soft.soft_discrete_actor(x, policy, 0.5)
        gap = offline.cql_gap(MaskedValues(x, framework.array(mask)), framework.array(np.array([2, 2], np.int32)))
        apart = policy.kl(Categorical(-x, framework.array(mask)))
        taken = policy.log_prob(framework.array(np.array([2, 2], np.int32)))
        return soft_losses + policy.entropy() + taken + gap + apart

    (gradient,) = framework.gradients(loss, numbers(2, 4))
    assert np.isfinite(gradient).all()
    assert not gradient[~mask].any()
    for noise in (0.0, 0.3, 1 - 2**-24):
        policy = Categorical(framework.array(numbers(2, 4)), framework.array(mask))
        action = framework.numpy(policy.sample(framework.array(np.full((2, 1), noise, np.float32))))
        assert mask[np.arange(2), action].all()
