"""Beta distributions and mixtures against SciPy, integrals and frequencies. In NumPy."""

from math import erf

import numpy as np
import pytest

from etude.base import trees
from etude.losses.distributions import Beta, Gaussian, Mixture
from etude.losses.distributions.continuous import normal_cdf, normal_quantile

N = 200_000
# What SciPy 1.17.1 gives, for actions in [-1, 1]: beta.logpdf and entropy; KL and Bhattacharyya by integrate.quad.
PARAMETERS = [(1, 1), (1.5, 4), (20, 3), (250, 240)]
ACTIONS = [0.3, -0.5, 0.9, 0.02]
LOG_PROBS = [-0.6931472, 0.0374962, 0.7789657, 2.1779046]
ENTROPIES = [0.6931472, 0.2585385, -0.644978, -1.6794961]
NOISE = np.float32([-3, -1, 0, 0.5, 2.5])
SAMPLES = [
    [-0.9973002, -0.6826895, 0.0, 0.3829249, 0.9875807],
    [-0.9930014, -0.8125085, -0.5122711, -0.3073482, 0.5401843],
    [0.1901608, 0.6030938, 0.7605919, 0.8228601, 0.965449],
    [-0.1147595, -0.0247578, 0.020436, 0.0430206, 0.1328755],
]


def beta(alpha, beta, n=1):
    return Beta(np.full((n, 1), alpha, np.float32), np.full((n, 1), beta, np.float32))


def uniform_places(probabilities):
    """The largest distance of the distribution of these numbers from the uniform one, times the root of how many: above
    2.23 with probability 1e-4 (Kolmogorov)."""
    ordered, places = np.sort(probabilities), np.arange(len(probabilities)) / len(probabilities)
    return np.abs(ordered - places).max() * len(ordered) ** 0.5


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def mixture():
    """Two numbers, three components: some that overlap, and one apart."""
    mean = np.float32([[[-1, 0], [-0.5, 1], [2, -1]]])
    log_std = np.log(np.float32([[[0.3, 0.5], [0.4, 0.6], [0.4, 0.3]]]))
    return Mixture(np.log(np.float32([[0.2, 0.5, 0.3]])), Gaussian(mean, log_std))


def many(distribution, n=N):
    return trees.map(lambda x: np.repeat(x, n, 0), distribution)


def test_the_log_density_of_beta_is_that_of_scipy():
    found = [beta(*p).log_prob(np.float32([[x]]))[0] for p, x in zip(PARAMETERS, ACTIONS, strict=True)]
    np.testing.assert_allclose(found, LOG_PROBS, atol=5e-5)


def test_entropy_divergence_and_distance_of_beta_are_those_of_scipy():
    np.testing.assert_allclose([beta(*p).entropy()[0] for p in PARAMETERS], ENTROPIES, atol=2e-4)
    divergences = [beta(1.5, 4).kl(beta(3, 2))[0], beta(20, 3).kl(beta(1, 1))[0]]
    np.testing.assert_allclose(divergences, [1.4538839, 1.3381252], rtol=1e-5)
    distances = [beta(1.5, 4).bhattacharyya(beta(3, 2))[0], beta(20, 3).bhattacharyya(beta(1, 1))[0]]
    np.testing.assert_allclose(distances, [0.3574853, 0.5746473], rtol=1e-5)


@pytest.mark.parametrize(("parameters", "samples"), list(zip(PARAMETERS, SAMPLES, strict=True)))
def test_samples_of_beta_are_its_quantiles_at_the_probabilities_of_the_noise(parameters, samples):
    np.testing.assert_allclose(beta(*parameters, n=5).sample(NOISE[:, None])[:, 0], samples, atol=4e-6)


def test_samples_of_beta_are_exact_far_out_and_within_the_bounds(rng):
    alpha, other = np.exp(rng.uniform(0, 6, (2, 5_000, 1))).astype(np.float32)
    for noise in (-6.0, 6.0, 0.0):
        action, log_prob = Beta(alpha, other).sample_with_log_prob(np.full((5_000, 1), noise, np.float32))
        assert (np.abs(action) < 1).all()
        assert np.isfinite(log_prob).all()


def test_the_mode_of_beta_is_its_peak_and_the_middle_where_it_is_flat():
    grid = np.linspace(-0.999, 0.999, 2_001).astype(np.float32)[:, None]
    for parameters in ((1.5, 4), (20, 3)):
        peak = grid[beta(*parameters, n=len(grid)).log_prob(grid).argmax(), 0]
        assert beta(*parameters).mode()[0, 0] == pytest.approx(peak, abs=1e-3)
    assert beta(1, 1).mode()[0, 0] == 0


def test_normal_quantiles_undo_the_normal_distribution_function():
    z = np.linspace(-4, 4, 81).astype(np.float32)[:, None]
    np.testing.assert_allclose(
        normal_cdf(np.float32([[0], [1.96], [-1]]))[:, 0], [0.5, 0.9750021, 0.1586553], atol=1e-6
    )
    np.testing.assert_allclose(normal_quantile(normal_cdf(z[z[:, 0] < 2])), z[z[:, 0] < 2], atol=1e-5)


def test_the_density_of_a_mixture_is_the_weighted_sum_of_its_components(mixture):
    action = np.float32([[0.3, -0.2]])
    each = [Gaussian(*(x[:, i] for x in mixture.components)).log_prob(action)[0] for i in range(3)]
    assert mixture.log_prob(action)[0] == pytest.approx(np.log(np.dot([0.2, 0.5, 0.3], np.exp(each))), rel=1e-5)


def test_samples_of_a_mixture_follow_it_in_each_number_and_jointly(mixture, rng):
    action = many(mixture).sample(rng.standard_normal((N, 2), np.float32))
    mean, std = mixture.components.mean[0], np.exp(mixture.components.log_std[0])
    for i in range(2):
        below = [0.5 * (1 + np.vectorize(erf)((action[:, i] - mean[k, i]) / std[k, i] / 2**0.5)) for k in range(3)]
        assert uniform_places(np.dot([0.2, 0.5, 0.3], below)) < 2.23
    correlation = np.corrcoef(action.T)[0, 1]
    centred = mean - np.dot([0.2, 0.5, 0.3], mean)
    weights = np.array([0.2, 0.5, 0.3])
    covariance = weights @ (centred[:, 0] * centred[:, 1])
    deviation = np.sqrt(weights @ (centred**2 + std**2))
    assert correlation == pytest.approx(covariance / deviation.prod(), abs=0.01)


def test_samples_of_a_mixture_of_betas_stay_in_bounds_and_have_its_mean(rng):
    one = Mixture(np.float32([[0, 1]]), Beta(np.float32([[[2], [5]]]), np.float32([[[8], [1]]])))
    action, log_prob = many(one).sample_with_log_prob(rng.standard_normal((N, 1), np.float32))
    weights = np.exp([0, 1]) / np.exp([0, 1]).sum()
    assert (np.abs(action) < 1).all()
    assert action.mean() == pytest.approx(weights @ [2 * 0.2 - 1, 2 * 5 / 6 - 1], abs=0.006)
    assert many(one, 1).entropy()[0] <= -log_prob.mean()


def test_every_noise_gives_a_finite_sample_and_no_component_of_no_weight(rng):
    flat = Mixture(
        np.float32([[0, -200.0, 0]]), Gaussian(np.float32([[[0], [1e3], [1]]]), np.zeros((1, 3, 1), np.float32))
    )
    noise = np.concatenate([rng.standard_normal((1_000, 1)), [[-9.0], [9.0], [0.0]]]).astype(np.float32)
    action = many(flat, len(noise)).sample(noise)
    assert np.isfinite(action).all()
    assert (np.abs(action) < 50).all()


def test_the_entropy_of_a_mixture_is_bounded_from_below_and_exact_where_components_agree_or_are_far_apart(mixture, rng):
    _, log_prob = many(mixture).sample_with_log_prob(rng.standard_normal((N, 2), np.float32))
    assert 0 < -log_prob.mean() - mixture.entropy()[0] < 0.1
    alike = Mixture(
        np.zeros((1, 2), np.float32), Gaussian(np.ones((1, 2, 1), np.float32), np.zeros((1, 2, 1), np.float32))
    )
    single = Gaussian(np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32))
    assert alike.entropy()[0] == pytest.approx(single.entropy()[0], rel=1e-6)
    apart = alike._replace(components=Gaussian(np.float32([[[-90], [90]]]), np.zeros((1, 2, 1), np.float32)))
    assert apart.entropy()[0] == pytest.approx(single.entropy()[0] + np.log(2), rel=1e-6)


def test_the_divergence_of_mixtures_is_bounded_from_above_and_0_where_they_are_equal(mixture, rng):
    other = mixture._replace(
        logits=np.float32([[0, 0, 0.5]]), components=Gaussian(mixture.components.mean + 0.2, mixture.components.log_std)
    )
    action, log_prob = many(mixture).sample_with_log_prob(rng.standard_normal((N, 2), np.float32))
    estimate = (log_prob - many(other).log_prob(action)).mean()
    assert estimate < mixture.kl(other)[0] < 2 * estimate
    assert mixture.kl(mixture)[0] == pytest.approx(0, abs=1e-6)


def test_the_mode_of_a_mixture_is_that_of_the_likeliest_component(mixture):
    np.testing.assert_array_equal(mixture.mode(), [[-0.5, 1]])


def test_the_distance_of_gaussians_is_the_integral_that_it_stands_for():
    one, other = (Gaussian(np.float32([[m]]), np.log(np.float32([[s]]))) for m, s in ((0.3, 0.5), (-0.4, 1.2)))
    assert one.bhattacharyya(other)[0] == pytest.approx(0.2436887, rel=1e-5)
