"""Array functions in NumPy: hand-worked numbers, float32, products that do not depend on the number of rows."""

import subprocess
import sys

import numpy as np
import pytest

from etude import ops
from etude.base.errors import ConfigError

X = np.array([[0.5, -2.0, 3.0], [0.0, 1.0, -1.0]], np.float32)


@pytest.mark.parametrize("outputs", [1, 2, 6, 17, 64, 128])
@pytest.mark.parametrize("inputs", [1, 3, 4, 17, 64, 128, 376])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_bits_of_a_row_do_not_depend_on_how_many_rows_there_are(inputs, outputs, order):
    rng = np.random.default_rng(inputs * 1000 + outputs)
    w = np.asarray(rng.normal(size=(inputs, outputs)), np.float32, order=order)
    x = rng.normal(size=(41, inputs)).astype(np.float32)
    together = ops.matmul(x, w)
    for rows in (1, 2, 3, 7, 8, 9, 16, 17, 40):
        start = 41 - rows
        np.testing.assert_array_equal(ops.matmul(x[start:], w), together[start:])
    np.testing.assert_array_equal(ops.matmul(np.asfortranarray(x), w), together)
    np.testing.assert_array_equal(ops.matmul(np.repeat(x, 2, 1)[:8, ::2], w), together[:8])


@pytest.mark.parametrize("inputs", [3, 23, 64, 256])
@pytest.mark.parametrize("outputs", [1, 17, 64])
@pytest.mark.parametrize("own_inputs", [False, True])
def test_the_bits_of_stacked_products_do_not_depend_on_how_many_rows_there_are(inputs, outputs, own_inputs):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, inputs, outputs)).astype(np.float32)
    x = rng.normal(size=(3, 21, inputs) if own_inputs else (21, inputs)).astype(np.float32)
    together = ops.matmul(x, w)
    assert together.shape == (3, 21, outputs)
    np.testing.assert_allclose(together, np.matmul(x, w), rtol=1e-4, atol=1e-4)
    for rows in (1, 5, 8, 13):
        np.testing.assert_array_equal(ops.matmul(x[..., :rows, :], w), together[:, :rows])


@pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 3, 4), (8, 4)])
def test_products_have_the_shape_of_the_input_but_for_the_last_axis(shape):
    x, w = np.ones(shape, np.float32), np.full((4, 5), 0.5, np.float32)
    result = ops.matmul(x, w)
    assert result.shape == (*shape[:-1], 5)
    np.testing.assert_array_equal(result, 2)
    np.testing.assert_array_equal(ops.affine(x, w, np.ones(5, np.float32)), 3)


def test_every_function_of_float32_stays_float32():
    one = (
        "relu",
        "elu",
        "gelu",
        "silu",
        "tanh",
        "sigmoid",
        "softplus",
        "exp",
        "square",
        "abs",
        "sign",
        "stop_gradient",
    )
    more = ("sum", "mean", "std", "max", "min", "logsumexp", "softmax", "log_softmax", "cumsum", "sort", "ones_like")
    for name in one + more:
        assert getattr(ops, name)(X).dtype == np.float32, name
    for name in ("log", "log1p", "sqrt"):
        assert getattr(ops, name)(np.abs(X) + 1).dtype == np.float32, name
    mixed = {
        "minimum": ops.minimum(X, 0.1),
        "maximum": ops.maximum(1, X),
        "clip": ops.clip(X, -0.5, 0.5),
        "where": ops.where(X > 0, X, -1e9),
        "where, numbers": ops.where(X > 0, 1.0, 0.0),
        "one_hot": ops.one_hot(np.array([1]), 2),
        "linspace": ops.linspace(-1, 1, 3, np.arange(2)),
        "mean of booleans": ops.mean(X > 0),
        "mean of integers": ops.mean(np.arange(4), 0),
    }
    for name, result in mixed.items():
        assert result.dtype == np.float32, name


def test_functions_of_python_numbers_are_python_numbers():
    numbers = [ops.exp(1.0), ops.log(2), ops.softplus(-3.0), ops.sigmoid(2.0), ops.clip(3.0, 0.0, 1.0), ops.relu(-1.0)]
    numbers += [ops.minimum(1.0, 2), ops.where(True, 1.0, 2.0), ops.mean(2.0), ops.sign(-3.0), ops.stop_gradient(0.5)]
    assert all(type(number) in (float, int) for number in numbers)
    np.testing.assert_allclose(numbers, [np.e, 0.6931472, 0.0485874, 0.8807971, 1, 0, 1, 1, 2, -1, 0.5], rtol=1e-6)
    assert (X * ops.exp(1.0)).dtype == np.float32


def test_activations_hand_worked():
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.testing.assert_allclose(ops.relu(x), [0, 0, 2])
    np.testing.assert_allclose(ops.elu(x), [np.exp(-1) - 1, 0, 2], rtol=1e-6)
    np.testing.assert_allclose(ops.silu(x), [-0.2689414, 0, 1.7615942], rtol=1e-6)
    np.testing.assert_allclose(ops.gelu(x), [-0.158808, 0, 1.954598], rtol=1e-5)
    np.testing.assert_allclose(ops.softplus(x), [0.3132617, 0.6931472, 2.1269281], rtol=1e-6)


def test_large_numbers_overflow_nowhere():
    x = np.array([-1e9, -200, -20, 20, 200, 1e9], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        np.testing.assert_allclose(ops.sigmoid(x), [0, 0, 2.0611537e-09, 1, 1, 1], rtol=1e-6)
        np.testing.assert_allclose(ops.softplus(x), [0, 0, 2.0611537e-09, 20, 200, 1e9], rtol=1e-6)
        np.testing.assert_allclose(ops.logsumexp(x), 1e9)
        np.testing.assert_allclose(ops.softmax(x), [0, 0, 0, 0, 0, 1])
        assert np.isfinite(ops.log_softmax(x)).all()
        assert np.isfinite(ops.elu(x)).all()


def test_reductions_go_over_all_axes_or_the_given_one():
    np.testing.assert_allclose(ops.sum(X), 1.5)
    np.testing.assert_allclose(ops.sum(X, 0), [0.5, -1, 2])
    np.testing.assert_allclose(ops.mean(X, 1, keepdims=True), [[0.5], [0]])
    np.testing.assert_allclose(ops.std(X, 1), X.std(1))
    np.testing.assert_allclose(ops.max(X, -1), [3, 1])
    np.testing.assert_allclose(ops.min(X), -2)
    assert ops.all(X > -3)
    np.testing.assert_array_equal(ops.all(X > -1.5, 1), [False, True])
    np.testing.assert_array_equal(ops.argmax(np.array([[1, 1, 0], [0, 2, 2]])), [0, 1])
    np.testing.assert_allclose(ops.cumsum(X), np.cumsum(X, 1))


def test_indices_pick_along_the_last_axis():
    np.testing.assert_allclose(ops.take_last(X, np.array([2, 0])), [3, 0])
    np.testing.assert_allclose(ops.take_last(np.stack([X, -X]), np.array([[2, 0], [0, 1]])), [[3, 0], [-0.5, -1]])
    np.testing.assert_allclose(ops.take_last(np.stack([X, -X]), np.array([2, 0])), [[3, 0], [-3, 0]])
    np.testing.assert_allclose(ops.take_row(np.stack([X, -X]), np.array([1, 0])), [X[1], -X[0]])
    np.testing.assert_array_equal(ops.one_hot(np.array([[2], [0]]), 3), [[[0, 0, 1]], [[1, 0, 0]]])
    np.testing.assert_array_equal(ops.one_hot(np.array([5, -1]), 3), 0)


def test_pieces_follow_one_another_along_the_last_axis():
    first, rest = ops.split_last(X, (1, X.shape[-1] - 1))
    np.testing.assert_array_equal(first, X[:, :1])
    np.testing.assert_array_equal(rest, X[:, 1:])


def test_weights_are_shared_between_the_bins_beside_their_places():
    place, weight = np.array([[0.0, 0.25, 2.0, 1.9], [1.0, 1.0, 0.5, 2.0]]), np.array([[1.0, 2, 3, 4], [5, 6, 8, 0]])
    found = ops.linear_binning(place, weight, 3)
    np.testing.assert_allclose(found, [[1 + 1.5, 0.5 + 0.4, 3 + 3.6], [4, 5 + 6 + 4, 0]])


def test_evenly_spaced_numbers_include_both_ends():
    np.testing.assert_array_equal(ops.linspace(-1.0, 1.0, 5, X), [-1, -0.5, 0, 0.5, 1])


def test_convolution_is_the_sum_over_each_window():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 7, 6, 3)), rng.normal(size=(3, 2, 3, 4))
    found = ops.conv(x, kernel, 2)
    assert found.shape == (2, 3, 3, 4)
    for row in range(3):
        for column in range(3):
            window = x[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2]
            np.testing.assert_allclose(found[:, row, column], np.einsum("bijc,ijcf->bf", window, kernel))


def test_the_recurrence_runs_backwards_from_the_last_value():
    x, decay = np.array([[1.0], [2.0], [3.0]]), np.array([[0.5], [0.0], [2.0]])
    np.testing.assert_allclose(ops.linear_recurrence(x, decay, np.array([10.0])), [[2], [2], [23]])


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(ConfigError, match="builtins.str.*numpy.asarray"):
        ops.exp("1")


def test_numpy_arrays_import_no_framework():
    code = (
        "import sys, numpy as np; from etude import ops; ops.matmul(np.ones((1, 2)), np.ones((2, 1))); ops.exp(1.0); "
        "print([name for name in ('torch', 'jax', 'keras', 'tensorflow') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
