"""Every array function gives on one engine what it gives in NumPy, with the same shape and kind of number."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS

from etude import ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
LONG = RNG.uniform(-1, 1, size=(37, 2)).astype(np.float32)
INDEX = np.array([0, 3, 1], np.int32)
W, STACKED = RNG.normal(size=(4, 5)).astype(np.float32), RNG.normal(size=(2, 4, 5)).astype(np.float32)
BIAS, STACKED_BIAS = RNG.normal(size=5).astype(np.float32), RNG.normal(size=(2, 1, 5)).astype(np.float32)
IMAGES, KERNEL = RNG.normal(size=(2, 9, 8, 3)).astype(np.float32), RNG.normal(size=(3, 2, 3, 5)).astype(np.float32)
QUERY, *PIECES = (RNG.normal(size=(2, length, 2, 4)).astype(np.float32) for length in (3, 4, 3, 4, 3))
SEEN = np.tri(3, 7, 4, bool)[None].repeat(2, 0)

ELEMENTWISE = "relu elu gelu silu tanh sigmoid softplus exp erf expm1 square abs sign isfinite sin cos rint"
LIKE = "stop_gradient zeros_like ones_like"
REDUCTIONS = "sum mean std max min"
ALONG_THE_LAST_AXIS = "argmax logsumexp softmax log_softmax cumsum sort"

CALLS = [(name, (X,)) for name in f"{ELEMENTWISE} {LIKE} {REDUCTIONS} {ALONG_THE_LAST_AXIS}".split()]
CALLS += [("replica_mean", (X[:1, 0],)), ("replica_std", (X,))]  # of one replica
CALLS += [(name, (POSITIVE,)) for name in ("log", "log1p", "sqrt")]
CALLS += [(name, (X, axis, True)) for name in f"{REDUCTIONS} logsumexp".split() for axis in (0, -1)]
CALLS += [(name, (np.stack([X, -X]), (0, 2))) for name in REDUCTIONS.split()]
CALLS += [
    ("minimum", (X, 0.3)),
    ("minimum", (0.3, X)),
    ("minimum", (X, X[::-1].copy())),
    ("maximum", (X, 0)),
    ("maximum", (-0.3, X)),
    ("clip", (X, -0.1, 0.2)),
    ("clip", (X, -POSITIVE, 0.2)),
    ("where", (X > 0, X, -1e9)),
    ("where", (X > 0, 1.0, 0.0)),
    ("mean", (X > 0,)),
    ("sum", (X > 0, -1)),
    ("all", (X > 0,)),
    ("all", (X > -0.5, 0)),
    ("linspace", (-10.0, 10.0, 51, X)),
    ("linspace", (0.25, 0.75, 2, INDEX)),
    ("cast", (INDEX, "float32")),
    ("huber", (3 * X, 0.5)),
    ("one_hot", (INDEX, 4)),
    ("one_hot", (INDEX.astype(np.int64), 2)),
    ("take_last", (X, INDEX)),
    ("take_last", (np.stack([X, -X]), np.stack([INDEX, INDEX[::-1]]))),
    ("take_last", (np.stack([X, -X]), INDEX)),
    ("take_row", (np.stack([X, -X]), np.array([1, 0]))),
    ("gather", (IMAGES, np.array([[8, 0, 0], [1, 2, 8]]))),
    ("linear_binning", (np.minimum(3 * POSITIVE, 3), X, 4)),
    ("linear_binning", (np.array([0, 0.25, 3], np.float32), np.array([1, 2, -4], np.float32), 4)),
    ("linear_recurrence", (X, POSITIVE, X[0])),
    ("linear_recurrence", (LONG, 1 - 0.1 * np.abs(LONG), LONG[0])),
    ("linear_recurrence", (X[:1], POSITIVE[:1], X[0])),
    ("scan", (lambda y, x, decay: x + decay * y, X[0], [X, 0.1 * X])),
    ("gradient", (lambda x: ops.tanh(x) * x[0], X)),
    ("matmul", (X, W)),
    ("matmul", (X, STACKED)),
    ("matmul", (np.stack([X, -X]), STACKED)),
    ("pad", (IMAGES, 2)),
    ("affine", (X, W, BIAS)),
    ("affine", (np.stack([X, -X]), W, BIAS)),
    ("affine", (X, STACKED, STACKED_BIAS)),
    ("affine", (np.stack([X, -X]), STACKED, STACKED_BIAS)),
    ("conv", (IMAGES, KERNEL, 2)),
    ("concatenate", ([X, X],)),
    ("concatenate", ([X, X], 0)),
    ("stack", ([X, X],)),
    ("stack", ([X, X], -1)),
    ("reshape", (X, (-1, 2))),
    ("expand_dims", (X, 1)),
    ("squeeze", (X[:, None], 1)),
    ("swapaxes", (X, 0, 1)),
    ("standardised", (X, 1e-5)),
    ("attention", (QUERY, PIECES[:2], PIECES[2:], SEEN)),
]


@pytest.fixture(scope="module")
def framework(engine_name):
    return FRAMEWORKS[engine_name]()


def to_framework(value, framework):
    if isinstance(value, list):
        return [framework.array(part) for part in value]
    return framework.array(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_the_engine_agrees_with_numpy(name, arguments, framework):
    function = getattr(ops, name)
    expected = np.asarray(function(*arguments))
    found = framework.numpy(function(*(to_framework(value, framework) for value in arguments)))
    assert found.shape == expected.shape
    assert found.dtype.kind == expected.dtype.kind
    assert found.dtype.itemsize <= expected.dtype.itemsize
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_the_pieces_of_an_array_are_those_of_numpy(framework):
    pieces = ops.split_last(framework.array(np.stack([X, -X])), (1, 0, X.shape[-1] - 1))
    assert [piece.shape[-1] for piece in pieces] == [1, 0, X.shape[-1] - 1]
    np.testing.assert_array_equal(np.concatenate([framework.numpy(piece) for piece in pieces], -1), np.stack([X, -X]))


def test_every_function_is_compared():
    public = {name for name, value in vars(ops).items() if callable(value) and value.__module__ == "etude.ops"}
    # More than one array, above; and random numbers, which no two generators share.
    assert public - {name for name, _ in CALLS} == {"split_last", "uniform"}


def test_uniform_numbers_of_a_generator_and_of_a_key_lie_between_the_bounds(engine_name):
    keys = [np.random.default_rng(0)]
    if engine_name == "jax":
        import jax

        keys.append(jax.random.key(0))
    for key in keys:
        found = np.asarray(ops.uniform(key, -0.5, 1.5, (2_000, 2)))
        assert found.shape == (2_000, 2) and -0.5 <= found.min() < -0.4 and 1.4 < found.max() < 1.5
        np.testing.assert_allclose(found.mean(0), 0.5, atol=0.1)


def test_an_array_of_the_framework_wins_over_numpy_arrays_and_numbers(framework):
    x = framework.array(X)
    for result in (
        ops.minimum(POSITIVE, x),
        ops.maximum(x, POSITIVE),
        ops.where(X > 0, x, POSITIVE),
        ops.clip(x, X, 1.0),
    ):
        assert type(result) is type(x * 1.0)
