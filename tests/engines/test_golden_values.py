"""Golden rows and gradients on one engine. Gradients are held against finite differences in NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest
from frameworks import FRAMEWORKS

from etude import ops
from etude.losses import policy, soft, value
from etude.losses.distributions import Bernoullis, Categorical, Gaussian, TanhGaussian

sys.path.insert(0, str(Path(__file__).parents[1] / "losses"))

from golden import ROWS, check, evaluate  # noqa: E402

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
    "soft_actor": lambda x: soft.soft_actor(soft.lowest(x), x[0], 0.3),
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


def test_double_q_moves_the_value_of_the_action_alone(framework):
    def loss(q, next_q, chooser):
        ones = ops.ones_like(q[:, 0])
        return value.double_q(q, ops.argmax(0.5 * chooser), ones, ones, next_q, chooser)

    q, following, chooser = framework.gradients(loss, numbers(4, 3), numbers(4, 3, seed=1), numbers(4, 3, seed=2))
    expected = np.zeros((4, 3))
    expected[np.arange(4), numbers(4, 3, seed=2).argmax(1)] = -1
    np.testing.assert_array_equal(q, expected)
    assert not following.any()
    assert not chooser.any()


def test_masked_choices_have_finite_gradients_and_are_never_sampled(framework):
    mask = np.array([[1, 0, 1, 0], [0, 0, 1, 0]], bool)

    def loss(x):
        logits = Categorical(ops.where(framework.array(mask), x, -1e9))
        return logits.entropy() + logits.log_prob(framework.array(np.array([2, 2], np.int32)))

    (gradient,) = framework.gradients(loss, numbers(2, 4))
    assert np.isfinite(gradient).all()
    assert not gradient[~mask].any()
    for noise in (0.0, 0.3, 1 - 2**-24):
        logits = framework.array(np.where(mask, numbers(2, 4), np.float32(-1e9)))
        action = framework.numpy(Categorical(logits).sample(framework.array(np.full((2, 1), noise, np.float32))))
        assert mask[np.arange(2), action].all()
