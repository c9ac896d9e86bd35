"""Every golden row, and gradients, on one engine. Gradients are held against finite differences of the same functions in NumPy, in
float64."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from etude import ops
from etude.losses import policy, soft, value
from etude.losses.distributions import Bernoullis, Categorical, Gaussian, TanhGaussian

sys.path.insert(0, str(Path(__file__).parents[1] / "losses"))

from golden import ROWS, check, evaluate  # noqa: E402


class _Torch:
    def __init__(self):
        import torch

        self.torch = torch

    def array(self, x):
        return self.torch.as_tensor(np.ascontiguousarray(x))

    def numpy(self, x):
        return x.detach().numpy()

    def gradients(self, function, inputs):
        tensors = [self.array(x).requires_grad_(x.dtype.kind == "f") for x in inputs]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        found = iter(self.torch.autograd.grad(function(*tensors).sum(), wanted, allow_unused=True, materialize_grads=True))
        return [next(found).numpy() if tensor.requires_grad else None for tensor in tensors]


class _Jax:
    def __init__(self):
        import jax

        self.jax = jax

    def array(self, x):
        return self.jax.numpy.asarray(x)

    def numpy(self, x):
        return np.asarray(x)

    def gradients(self, function, inputs):
        wanted = tuple(i for i, x in enumerate(inputs) if x.dtype.kind == "f")
        total = lambda *arrays: function(*arrays).sum()  # noqa: E731
        found = self.jax.jit(self.jax.grad(total, wanted))(*[self.array(x) for x in inputs])
        by_position = dict(zip(wanted, found, strict=True))
        return [np.asarray(by_position[i]) if i in by_position else None for i in range(len(inputs))]


class _TensorFlow:
    def __init__(self):
        import tensorflow

        self.tf = tensorflow

    def array(self, x):
        return self.tf.constant(x)

    def numpy(self, x):
        return x.numpy()

    def gradients(self, function, inputs):
        wanted = [x.dtype.kind == "f" for x in inputs]

        @self.tf.function(jit_compile=True)
        def run(arrays):
            floats = [array for array, want in zip(arrays, wanted, strict=True) if want]
            with self.tf.GradientTape() as tape:
                for array in floats:
                    tape.watch(array)
                total = self.tf.reduce_sum(function(*arrays))
            return tape.gradient(total, floats, unconnected_gradients="zero")

        found = iter(run([self.array(x) for x in inputs]))
        return [next(found).numpy() if want else None for want in wanted]


@pytest.fixture(scope="module")
def framework(engine_name):
    if engine_name != "torch":
        os.environ["KERAS_BACKEND"] = engine_name
    return {"torch": _Torch, "jax": _Jax, "tensorflow": _TensorFlow}[engine_name]()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_golden_row_comes_out(row, framework):
    result = framework.numpy(evaluate(row, framework.array))
    assert result.dtype == np.float32
    check(row, result)


ACTION = np.array([0, 2, 1, 0], np.int32)
REWARD, DISCOUNT = np.ones(4, np.float32), np.array([0.9, 0, 0.9, 0.5], np.float32)


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


DIFFERENTIABLE = {
    "q_learning": (lambda q, nq: ops.square(value.q_learning(q, ACTION_OF(q), nq[:, 0], nq[:, 1], nq)), 1),
}


SMOOTH = {
    "huber": lambda x: value.huber(3 * x),
    "categorical log_prob": lambda x: Categorical(x).kl(Categorical(0.5 * x)) * 1.0,
    "categorical entropy": lambda x: Categorical(x).entropy(),
    "bernoullis": lambda x: Bernoullis(x).entropy() + Bernoullis(x).kl(Bernoullis(-x)),
    "gaussian": lambda x: Gaussian(x, 0.5 * x).log_prob(x * x) + Gaussian(x, x).kl(Gaussian(-x, 0.3 * x)),
    "tanh gaussian sample": lambda x: TanhGaussian(x, 0.3 * x).sample_with_log_prob(1 + 0 * x)[1],
    "tanh gaussian log_prob": lambda x: TanhGaussian(x, 0.3 * x).log_prob(ops.tanh(2 * x)),
    "ppo_clip": lambda x: policy.ppo_clip(x[:, 0], 1 + 0 * x[:, 1], 0.2),
    "value_clip": lambda x: policy.value_clip(x[:, 0], 0 * x[:, 0], 1 + 0 * x[:, 0], 0.2),
    "activations": lambda x: ops.gelu(x) + ops.silu(x) + ops.elu(x) + ops.softplus(x) + ops.sigmoid(x) + ops.tanh(x),
    "reductions": lambda x: ops.logsumexp(x) + ops.std(x, -1) + ops.max(x, -1) * ops.min(x, -1) + ops.mean(x, -1),
    "recurrence": lambda x: ops.linear_recurrence(x, ops.sigmoid(x), x[0]),
    "lowest": lambda x: soft.lowest(x),
}
