"""Policies that are given probabilities or logits: `SoftmaxPolicy` and `GumbelSoftmaxPolicy`."""

import numpy as np
import pytest

from etude.base.errors import ConfigError, NumericalError
from etude.base.spaces import Box, Discrete
from etude.explore import GumbelSoftmaxPolicy, SoftmaxPolicy

N = 100_000
NONE = np.empty((0, 0))  # the memory of explorers that have none
LOGITS = np.array([1.0, 0.5, -0.5, 0.0], np.float32)
CHANCES = np.exp(LOGITS) / np.exp(LOGITS).sum()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def softmax_policy(probabilities, rng):
    probabilities = np.asarray(probabilities)
    noise = SoftmaxPolicy().draw(rng, len(probabilities), Discrete(probabilities.shape[1]))
    return SoftmaxPolicy()(probabilities, noise, 0, NONE).action


def chi_square(found, chances):
    expected = np.asarray(chances) * found.sum()
    return float(((found - expected) ** 2 / expected).sum())


def test_an_action_of_probability_zero_is_never_chosen(rng):
    rows = np.repeat(np.array([[0, 0.5, 0, 0.5]], np.float32), N, 0)
    found = np.bincount(softmax_policy(rows, rng), minlength=4)
    assert found[0] == found[2] == 0
    assert chi_square(found[[1, 3]], [0.5, 0.5]) < 15.2  # 1 degree of freedom, p = 1e-4
    least = np.zeros((1, 1), np.float32)
    assert SoftmaxPolicy()(rows[:1], least, 0, NONE).action == [1]


def test_rows_may_miss_one_by_a_thousandth(rng):
    softmax_policy(np.array([[0.5, 0.4995]], np.float32), rng)
    softmax_policy(np.array([[0.5, 0.5005]], np.float16), rng)
    with pytest.raises(ConfigError, match="row 1 of 2 sums to 0.998"):
        softmax_policy(np.array([[0.5, 0.5], [0.5, 0.498]]), rng)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, 0.6], r"row 2 of 3 sums to 1\.1.*End the network in a softmax.*BoltzmannQPolicy"),
        ([1.5, -0.5], r"row 2 of 3 sums to 1, its least entry is -0\.5"),
        ([0.0, 0.0], "row 2 of 3 sums to 0"),
        ([-1e9, -1e9], "row 2 of 3"),
    ],
)
def test_rows_that_are_no_probabilities_are_refused_with_row_and_sum(row, message, rng):
    with pytest.raises(ConfigError, match=message):
        softmax_policy([[0.5, 0.5], [1.0, 0.0], row], rng)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_probabilities_that_are_not_finite_are_refused(bad, rng):
    with pytest.raises(NumericalError, match="environment 1 of 2"):
        softmax_policy([[0.5, 0.5], [bad, 0.5]], rng)


def test_the_number_of_actions_must_be_that_of_the_probabilities():
    with pytest.raises(ConfigError, match=r"probs has shape \(2,\); expected \(3,\)"):
        SoftmaxPolicy().select_action(3, np.array([0.5, 0.5]))
    with pytest.raises(ConfigError, match="sums to 0.9"):
        SoftmaxPolicy().select_action(2, np.array([0.4, 0.5]))


@pytest.mark.parametrize("space", [Discrete(4), Box(0.0, 1.0, (4,), np.float32)], ids=str)
@pytest.mark.parametrize("temperature", [0.1, 5.0])
def test_gumbel_softmax_actions_are_one_hot_samples_of_the_softmax_at_any_temperature(space, temperature, rng):
    policy = GumbelSoftmaxPolicy(temperature)
    action = policy(np.repeat(LOGITS[None], N, 0), policy.draw(rng, N, space), 0, NONE).action
    assert (action.shape, action.dtype) == ((N, 4), np.float32)
    assert (np.sort(action, 1) == [0, 0, 0, 1]).all()
    assert chi_square(action.sum(0), CHANCES) < 21.1  # 3 degrees of freedom


def test_the_single_call_has_the_same_chances(rng):
    policy = GumbelSoftmaxPolicy(0.7, rng=rng)
    found = sum(policy.gumbel_softmax(LOGITS) for _ in range(5000))
    assert chi_square(found, CHANCES) < 21.1
    together = policy.gumbel_softmax(np.repeat(LOGITS[None], N, 0))
    assert (together.dtype, together.shape) == (np.float32, (N, 4))
    assert chi_square(together.sum(0, np.float64), CHANCES) < 21.1


def test_one_hot_from_logits_is_epsilon_greedy(rng):
    policy = GumbelSoftmaxPolicy(eps=0.2, rng=rng)
    found = policy.onehot_from_logits(np.repeat(LOGITS[None], N, 0))
    assert (np.sort(found, 1) == [0, 0, 0, 1]).all()
    assert chi_square(found.sum(0, np.float64), [0.85, 0.05, 0.05, 0.05]) < 21.1
    policy.eps = 0.0
    assert policy.onehot_from_logits([0, 3, 1]).tolist() == [0, 1, 0]


def test_gumbel_numbers_have_their_mean_variance_and_distribution():
    sample = GumbelSoftmaxPolicy().sample_gumbel((1000, 200))
    assert (sample.shape, sample.dtype) == ((1000, 200), np.float64)
    assert sample.mean() == pytest.approx(np.euler_gamma, abs=4 * np.pi / np.sqrt(6 * sample.size))
    assert sample.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
    for x in (-1.0, 0.0, 2.0):
        assert (sample <= x).mean() == pytest.approx(np.exp(-np.exp(-x)), abs=0.005)


def test_relaxed_samples_are_probabilities_that_sharpen_as_the_temperature_falls():
    def relaxed(temperature):
        return GumbelSoftmaxPolicy(temperature).gumbel_softmax_sample(np.repeat(LOGITS[None], 2000, 0))

    soft, sharp = relaxed(5.0), relaxed(0.05)
    for sample in (soft, sharp):
        np.testing.assert_allclose(sample.sum(1), 1, atol=1e-6)
        assert (sample >= 0).all()
    np.testing.assert_array_equal(soft.argmax(1), sharp.argmax(1))  # the same generator, seed 0
    assert soft.max(1).mean() < 0.5 < 0.95 < sharp.max(1).mean()
    # log(p_i / p_j) * temperature is the difference of the perturbed logits.
    difference = 5.0 * (np.log(soft[:, 0]) - np.log(soft[:, 2]))
    assert difference.mean() == pytest.approx(1.5, abs=4 * np.pi / np.sqrt(3 * 2000))


def test_masked_logits_are_never_chosen(rng):
    policy, logits = GumbelSoftmaxPolicy(eps=1.0, rng=rng), np.repeat(np.array([[0, -np.inf, 1]], np.float32), 5000, 0)
    actions = [
        policy(logits, policy.draw(rng, 5000, Discrete(3)), 0, NONE).action,
        policy.onehot_from_logits(logits),
        policy.gumbel_softmax(logits),
        policy.gumbel_softmax_sample(logits),
    ]
    for action in actions:
        assert not action[:, 1].any()
        assert action[:, 0].any()


def test_logits_of_more_axes_keep_their_shape():
    policy, logits = GumbelSoftmaxPolicy(), np.zeros((2, 3, 5), np.float32)
    for made in (
        policy.onehot_from_logits(logits),
        policy.gumbel_softmax(logits),
        policy.gumbel_softmax_sample(logits),
    ):
        assert made.shape == logits.shape
        np.testing.assert_allclose(made.sum(-1), 1, rtol=1e-6)


def test_logits_that_cannot_be_used_are_refused(rng):
    policy = GumbelSoftmaxPolicy()
    bad = np.array([[0, 1], [np.nan, 0]], np.float32)
    for call in (
        policy.onehot_from_logits,
        policy.gumbel_softmax,
        policy.gumbel_softmax_sample,
        lambda logits: policy(logits, policy.draw(rng, 2, Discrete(2)), 0, NONE),
    ):
        with pytest.raises(NumericalError, match="environment 1 of 2"):
            call(bad)
        with pytest.raises(NumericalError, match="environment 0 of 2"):
            call(np.array([[-np.inf, -np.inf], [0, 0]], np.float32))
        call(np.array([[-1e9, -1e9], [0, 0]], np.float32))
    with pytest.raises(ConfigError, match=r"logits \[n\]"):
        policy.gumbel_softmax(np.float32(1))


@pytest.mark.parametrize(
    ("parameters", "message"), [({"temperature": 0}, "temperature = 0"), ({"eps": 2}, "eps = 2")], ids=str
)
def test_impossible_parameters_are_refused_when_given_and_when_used(parameters, message):
    with pytest.raises(ConfigError, match=message):
        GumbelSoftmaxPolicy(**parameters)
    policy = GumbelSoftmaxPolicy()
    for name, value in parameters.items():
        setattr(policy, name, value)
    with pytest.raises(ConfigError, match=message):
        policy.gumbel_softmax(LOGITS)
    with pytest.raises(ConfigError, match="eps = 0"):
        GumbelSoftmaxPolicy().sample_gumbel((2,), eps=0)
