"""Distributions against their definitions: frequencies, moments, Monte Carlo estimates and integrals. In NumPy."""

import numpy as np
import pytest

from etude.losses.distributions import (
    Bernoullis,
    Categorical,
    Deterministic,
    Gaussian,
    MultiCategorical,
    NumbersAndChoices,
    TanhGaussian,
    state_dependent,
)

N = 200_000
LOWEST = np.finfo(np.float32).min


def repeat(values, n=N):
    return np.repeat(np.asarray([values], np.float32), n, 0)


def chi_square(counts, probabilities):
    expected = np.asarray(probabilities) * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_categorical_samples_follow_the_probabilities(rng):
    logits = np.log([0.5, 0.2, 0.2, 0.07, 0.03])
    action = Categorical(repeat(logits)).sample(rng.random((N, 1), np.float32))
    assert chi_square(np.bincount(action, minlength=5), np.exp(logits)) < 23.5  # 4 degrees of freedom, p = 1e-4


@pytest.mark.parametrize("forbidden", [-1e9, 0.0, -LOWEST])
def test_masked_choices_are_never_sampled_at_either_end_of_the_noise(forbidden, rng):
    logits = rng.normal(size=(500, 7)).astype(np.float32)
    masked = rng.random((500, 7)) < 0.6
    masked[np.arange(500), rng.integers(0, 7, 500)] = False
    policy = Categorical(np.where(masked, np.float32(forbidden), logits), ~masked)
    largest = np.nextafter(np.float32(1), np.float32(0))
    for noise in (np.zeros((500, 1), np.float32), np.full((500, 1), largest), rng.random((500, 1), np.float32)):
        action, log_prob = policy.sample_with_log_prob(noise)
        assert not masked[np.arange(500), action].any()
        assert np.isfinite(log_prob).all()
    assert np.isfinite(policy.entropy()).all()
    assert (policy.entropy() <= np.log((~masked).sum(1)) + 1e-5).all()
    assert not masked[np.arange(500), policy.mode()].any()
    np.testing.assert_array_equal(policy.kl(policy), 0)


def test_no_rounding_leads_past_the_last_choice(rng):
    largest = np.full((20_000, 1), np.nextafter(np.float32(1), np.float32(0)))
    logits = rng.normal(size=(20_000, 11)).astype(np.float32) * 5
    assert Categorical(logits).sample(largest).max() <= 10


def test_sampled_log_probabilities_are_those_of_log_prob(rng):
    uniform, normal = rng.random((50, 3), np.float32), rng.standard_normal((50, 3), np.float32)
    logits, scale = rng.normal(size=(50, 3)).astype(np.float32), rng.normal(size=(50, 3)).astype(np.float32)
    cases = [
        (Categorical(logits), uniform[:, :1]),
        (MultiCategorical((logits, scale[:, :2], logits)), uniform),
        (Bernoullis(logits), uniform),
        (Gaussian(logits, scale), normal),
        (TanhGaussian(logits, 0.3 * scale), normal),
    ]
    for distribution, noise in cases:
        action, log_prob = distribution.sample_with_log_prob(noise)
        np.testing.assert_array_equal(action, distribution.sample(noise))
        assert log_prob.shape == (50,)
        assert log_prob.dtype == np.float32
        np.testing.assert_allclose(log_prob, distribution.log_prob(action), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("mine", "other", "noise"),
    [
        (Categorical(repeat([0, 1, 2])), Categorical(repeat([1, 1, -1])), "random"),
        (
            MultiCategorical((repeat([0, 1]), repeat([2, 0, 1]))),
            MultiCategorical((repeat([1, 0]), repeat([0, 0, 1]))),
            "random",
        ),
        (Bernoullis(repeat([0.5, -1])), Bernoullis(repeat([-0.5, 1])), "random"),
        (Gaussian(repeat([0, 1]), repeat([0, -0.5])), Gaussian(repeat([0.5, 0]), repeat([0.3, 0.2])), "normal"),
    ],
    ids=["categorical", "multicategorical", "bernoullis", "gaussian"],
)
def test_entropy_and_divergence_agree_with_monte_carlo(mine, other, noise, rng):
    numbers = rng.random((N, 2), np.float32) if noise == "random" else rng.standard_normal((N, 2), np.float32)
    action, log_prob = mine.sample_with_log_prob(numbers[:, :1] if isinstance(mine, Categorical) else numbers)
    assert mine.entropy()[0] == pytest.approx(-log_prob.mean(), rel=5e-3)
    assert mine.kl(other)[0] == pytest.approx((log_prob - other.log_prob(action)).mean(), rel=3e-2)
    assert mine.kl(mine)[0] == pytest.approx(0, abs=1e-6)


def test_gaussian_samples_have_the_mean_and_the_deviation(rng):
    samples = Gaussian(repeat([1, -2]), repeat(np.log([0.5, 2]))).sample(rng.standard_normal((N, 2), np.float32))
    np.testing.assert_allclose(samples.mean(0), [1, -2], atol=0.02)
    np.testing.assert_allclose(samples.std(0), [0.5, 2], rtol=0.01)


def test_the_density_of_the_squashed_gaussian_integrates_to_one():
    edges = np.linspace(-1, 1, 20_001)
    middle = ((edges[1:] + edges[:-1]) / 2).astype(np.float32)[:, None]
    policy = TanhGaussian(np.full_like(middle, 0.4), np.full_like(middle, -0.7))
    assert np.exp(policy.log_prob(middle)).sum() * (edges[1] - edges[0]) == pytest.approx(1, abs=1e-3)


def test_the_squashed_log_probability_keeps_its_digits_where_tanh_saturates():
    x = np.array([[0.0], [5.0], [12.0], [-30.0]], np.float32)
    _, log_prob = TanhGaussian(x, np.zeros_like(x)).sample_with_log_prob(np.zeros_like(x))
    exact = -0.5 * np.log(2 * np.pi) - 2 * (np.log(2) - np.abs(x[:, 0]) - np.log1p(np.exp(-2.0 * np.abs(x[:, 0]))))
    np.testing.assert_allclose(log_prob, exact, rtol=1e-6)


def test_the_squashed_log_probability_is_finite_at_the_bounds():
    bounds = np.array([[1.0, -1.0]], np.float32)
    assert np.isfinite(TanhGaussian(np.zeros_like(bounds), np.zeros_like(bounds)).log_prob(bounds)).all()


def test_the_divergence_of_squashed_gaussians_is_that_of_the_gaussians():
    parameters = [np.full((1, 2), value, np.float32) for value in (0.3, -0.2, -0.1, 0.4)]
    squashed = TanhGaussian(*parameters[:2]).kl(TanhGaussian(*parameters[2:]))
    np.testing.assert_allclose(squashed, Gaussian(*parameters[:2]).kl(Gaussian(*parameters[2:])))


def test_modes_are_the_likeliest_actions():
    np.testing.assert_array_equal(Categorical(repeat([0, 3, 1], 2)).mode(), [1, 1])
    np.testing.assert_array_equal(MultiCategorical((repeat([0, 3], 2), repeat([5, 1, 2], 2))).mode(), [[1, 0], [1, 0]])
    np.testing.assert_array_equal(Bernoullis(repeat([-1, 2], 1)).mode(), [[0, 1]])
    np.testing.assert_array_equal(Gaussian(repeat([1, 2], 1), repeat([0, 0], 1)).mode(), [[1, 2]])
    np.testing.assert_allclose(TanhGaussian(repeat([1, 2], 1), repeat([0, 0], 1)).mode(), np.tanh([[1, 2]]))
    np.testing.assert_array_equal(Deterministic(repeat([0.5], 1)).mode(), [[0.5]])


# What Stable-Baselines3 2.9.2 gives: StateDependentNoiseDistribution in float64, with squash_output for TanhGaussian.
FEATURES = np.float32([[0.034, 1.36, 1.225, -0.51], [-0.298, -0.527, 0.57, -0.056], [0.747, -1.847, 1.567, -0.096]])
MEAN = np.float32([[0.68, -0.137], [-0.379, 0.463], [0.825, -0.203]])
LOG_STD = np.float32([[-1.076, -1.435, -0.803, -1.96], [-0.657, -1.757, -1.335, -1.407]])
ACTION = np.float32([[-0.476, 0.544], [0.661, -0.668], [-0.059, -0.401]])
MATRIX = np.float32(
    [
        [[-0.744, 0.717, 0.545, -0.207], [0.385, -0.3, 1.043, -0.814]],
        [[0.348, 1.099, -0.662, -1.734], [0.248, -1.285, -0.838, 0.126]],
        [[0.528, 1.386, 0.627, 0.956], [-0.739, 0.822, 0.402, -1.332]],
    ]
)
GAUSSIAN_SAMPLE = [[1.2175213, 0.2372695], [-0.7076325, 0.4141178], [0.7771371, -0.5540802]]
GAUSSIAN_LOG_PROB, GAUSSIAN_ENTROPY = [-3.4721068, -16.7763004, -1.8302044], [1.5219399, 0.1894725, 2.2636771]
TANH_SAMPLE = [[0.8389215, 0.2329150], [-0.6091902, 0.3919635], [0.6510604, -0.5035720]]
TANH_LOG_PROB = [-3.2525472, -20.2762770, -1.6633477]


@pytest.mark.parametrize(
    ("kind", "sample", "log_prob"),
    [(Gaussian, GAUSSIAN_SAMPLE, GAUSSIAN_LOG_PROB), (TanhGaussian, TANH_SAMPLE, TANH_LOG_PROB)],
)
def test_state_dependent_noise_is_that_of_stable_baselines3(kind, sample, log_prob):
    policy = state_dependent(kind, MEAN, FEATURES, LOG_STD)
    np.testing.assert_allclose(policy.log_prob(ACTION), log_prob, rtol=2e-5)
    found, found_log_prob = policy.sample_with_log_prob(policy.standard_noise(MATRIX))
    np.testing.assert_allclose(found, sample, rtol=1e-5)
    np.testing.assert_allclose(found_log_prob, policy.log_prob(found), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(policy.mode(), kind(MEAN, LOG_STD).mode())
    if kind is Gaussian:
        np.testing.assert_allclose(policy.entropy(), GAUSSIAN_ENTROPY, rtol=1e-5)


def test_numbers_and_choices_are_those_of_each_by_itself(rng):
    numbers = Gaussian(repeat([0.5, -1.0]), repeat([-0.5, 0.3]))
    logits = (repeat(np.log([0.7, 0.2, 0.1])), repeat(np.log([0.5, 0.5])))
    choices = MultiCategorical(logits, (repeat([1, 1, 1]) > 0, repeat([0, 1]) > 0))
    policy, noise = NumbersAndChoices(numbers, choices), rng.standard_normal((N, 4), np.float32)
    action, log_prob = policy.sample_with_log_prob(noise)
    assert action.shape == (N, 4) and action.dtype == np.float32
    np.testing.assert_array_equal(action, policy.sample(noise))
    np.testing.assert_allclose(action[:, :2].mean(0), [0.5, -1.0], atol=0.02)
    assert chi_square(np.bincount(action[:, 2].astype(int), minlength=3), [0.7, 0.2, 0.1]) < 18.5  # p = 1e-4
    assert (action[:, 3] == 1).all()
    whole = action[:, 2:].astype(np.int64)
    np.testing.assert_allclose(
        log_prob, numbers.log_prob(action[:, :2]) + choices.log_prob(whole), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(policy.log_prob(action), log_prob, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.entropy(), numbers.entropy() + choices.entropy(), rtol=1e-6)
    assert policy.mode()[0].tolist() == [0.5, -1.0, 0, 1]
    other = NumbersAndChoices(Gaussian(repeat([0.0, 0.0]), repeat([0.0, 0.0])), choices)
    np.testing.assert_allclose(policy.kl(other), numbers.kl(other.numbers), rtol=1e-6)


def test_no_rounding_of_normal_noise_leads_past_the_last_choice():
    ends = np.float32([[0, -40], [0, -9], [0, 9], [0, 40]])
    policy = NumbersAndChoices(Gaussian(repeat([0.0], 4), repeat([0.0], 4)), MultiCategorical((repeat([0, 0, 0], 4),)))
    assert policy.sample(ends)[:, 1].tolist() == [0, 0, 2, 2]
