"""Explorers over distributions and continuous actions."""

import numpy as np
import pytest

from etude.base.errors import ConfigError, EnvironmentFault, NumericalError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from etude.explore import GaussianNoise, Greedy, Sample
from etude.losses.distributions import Bernoullis, Categorical, Deterministic, Gaussian, MultiCategorical, TanhGaussian

N = 50_000
NONE = np.empty((0, 0))  # the state of explorers that have none
BOX = Box(-1.0, 1.0, (2,), np.float32)
CASES = [
    (Categorical, (4,), Discrete(4)),
    (Bernoullis, (3,), MultiBinary(3)),
    (Gaussian, (2,), BOX),
    (TanhGaussian, (2,), BOX),
]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def distribution(kind, shape, rng, n):
    return kind(*(0.5 * rng.normal(size=(n, *shape)).astype(np.float32) for _ in kind._fields))


@pytest.mark.parametrize(("kind", "shape", "space"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_samples_fit_their_space_and_carry_their_log_probability(kind, shape, space, rng):
    policy = distribution(kind, shape, rng, 5)
    noise = Sample().draw(rng, 5, space)
    action, extras = Sample()(policy, noise, 0, NONE)
    assert action.shape == (5, *space.shape)
    np.testing.assert_allclose(extras["log_prob"], policy.log_prob(action), rtol=1e-3, atol=1e-4)
    assert extras["log_prob"].dtype == np.float32
    bare = Sample(log_prob=False)(policy, noise, 0, NONE)
    np.testing.assert_array_equal(bare.action, action)
    assert bare.extras == {}


def test_several_choices_take_a_number_each(rng):
    policy = MultiCategorical((np.zeros((N, 2), np.float32), np.zeros((N, 3), np.float32)))
    action = Sample()(policy, Sample().draw(rng, N, MultiDiscrete([2, 3])), 0, NONE).action
    joint = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6)
    assert float(((joint - N / 6) ** 2 / (N / 6)).sum()) < 25.7  # 5 degrees of freedom, p = 1e-4


def test_greedy_takes_the_mode_of_distributions_and_the_best_of_values(rng):
    values = np.array([[0, 2, 1], [3, 3, 0]], np.float32)
    noise = Greedy().draw(rng, 2, Discrete(3))
    assert noise.shape == (2, 0)
    np.testing.assert_array_equal(Greedy()(values, noise, 0, NONE).action, [1, 0])
    np.testing.assert_array_equal(Greedy()(Categorical(values), noise, 0, NONE).action, [1, 0])
    np.testing.assert_array_equal(Greedy()(Gaussian(values, values), noise, 0, NONE).action, values)
    np.testing.assert_allclose(Greedy()(TanhGaussian(values, values), noise, 0, NONE).action, np.tanh(values))
    np.testing.assert_array_equal(Greedy()(Deterministic(values), noise, 0, NONE).action, values)


def test_gaussian_noise_has_its_deviation_and_is_clipped_to_the_canonical_bounds(rng):
    explorer = GaussianNoise(Linear(0.1, 0.5), total=100)
    policy = Deterministic(np.repeat(np.array([[0.0, 0.9]], np.float32), N, 0))
    noise = explorer.draw(rng, N, BOX)
    start, end = explorer(policy, noise, 0, NONE).action, explorer(policy, noise, 100, NONE).action
    assert start.dtype == np.float32
    assert start[:, 0].mean() == pytest.approx(0, abs=0.003)
    assert start[:, 0].std() == pytest.approx(0.1, rel=0.02)
    assert np.abs(end).max() == 1
    assert (end[:, 1] == 1).mean() == pytest.approx(0.4207, abs=0.01)  # P(z > 0.2)


def test_masked_choices_are_never_sampled(rng):
    logits, allowed = rng.normal(size=(5_000, 6)).astype(np.float32), rng.random((5_000, 6)) < 0.5
    allowed[:, 2] = True
    for policy, space in (
        (Categorical(logits, allowed), Discrete(6)),
        (MultiCategorical((logits, logits), (allowed, allowed)), MultiDiscrete([6, 6])),
    ):
        action, extras = Sample()(policy, Sample().draw(rng, 5_000, space), 0, NONE)
        assert np.take_along_axis(allowed, action.reshape(5_000, -1), 1).all()
        assert np.isfinite(extras["log_prob"]).all()


def test_a_mask_that_allows_nothing_is_the_environments_fault(rng):
    logits, allowed = np.zeros((2, 2), np.float32), np.array([[1, 0], [0, 0]], bool)
    for policy in (Categorical(logits, allowed), MultiCategorical((logits,), (allowed,))):
        for explorer in (Sample(), Greedy()):
            with pytest.raises(EnvironmentFault, match="Environment 1 of 2 allows no action"):
                explorer(policy, explorer.draw(rng, 2, Discrete(2)), 0, NONE)


@pytest.mark.parametrize("allowed", [(), np.ones((2, 2), bool)], ids=["plain", "masked"])
def test_logits_of_minus_a_thousand_million_are_sampled_like_any_others(allowed, rng):
    policy = Categorical(np.array([[-1e9, -1e9], [-1e9, -2e9]], np.float32), allowed)
    actions = [Sample()(policy, np.full((2, 1), noise, np.float32), 0, NONE).action.tolist() for noise in (0.1, 0.9)]
    assert actions == [[0, 0], [1, 0]]
    assert Greedy()(policy, np.empty((2, 0)), 0, NONE).action.tolist() == [0, 0]


def test_switches_that_are_all_off_are_allowed(rng):
    policy = Bernoullis(np.full((2, 3), -1e9, np.float32))
    assert not Sample()(policy, Sample().draw(rng, 2, MultiBinary(3)), 0, NONE).action.any()


def test_actions_are_uniform_in_the_first_steps_of_a_run_and_then_noisy():
    explorer, mode = GaussianNoise(0.1, random_steps=100), Deterministic(np.full((20_000, 1), 0.5, np.float32))
    noise = explorer.draw(np.random.default_rng(0), 20_000, Box(-1, 1, (1,)))
    first = explorer(mode, noise, 99, np.empty((20_000, 0))).action[:, 0]
    shares = np.histogram(first, 10, (-1, 1))[0] / len(first)
    assert first.min() >= -1 and first.max() <= 1
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
    assert explorer(mode, noise, 100, np.empty((20_000, 0))).action.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("explorer", [Sample(), Greedy(), GaussianNoise(0.1)], ids=lambda e: type(e).__name__)
def test_distributions_that_are_not_finite_are_refused(explorer, rng):
    mean = np.array([[0, 0], [0, np.nan]], np.float32)
    with pytest.raises(NumericalError, match="environment 1 of 2.*NaN"):
        explorer(TanhGaussian(mean, mean), explorer.draw(rng, 2, BOX), 0, NONE)


@pytest.mark.parametrize("explorer", [Sample(), GaussianNoise(0.1)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("output", [np.zeros((2, 2), np.float32), (np.zeros((2, 2), np.float32),)])
def test_bare_arrays_are_refused_with_what_to_return(explorer, output, rng):
    with pytest.raises(ConfigError, match=r"needs a distribution.*Deterministic\(action\)"):
        explorer(output, explorer.draw(rng, 2, BOX), 0, NONE)


@pytest.mark.parametrize("explorer", [Sample(), GaussianNoise(0.1)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("space", [BOX, Discrete(3), MultiDiscrete([2, 3]), MultiBinary(4)], ids=str)
def test_drawing_in_parts_gives_the_same_numbers_as_at_once(explorer, space):
    whole = explorer.draw(np.random.default_rng(5), 9, space)
    rng = np.random.default_rng(5)
    parts = [explorer.draw(rng, steps, space) for steps in (3, 5, 1)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(("kind", "shape", "space"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_sample_does_not_depend_on_the_other_environments(kind, shape, space, rng):
    policy, noise = distribution(kind, shape, rng, 33), Sample().draw(rng, 33, space)
    together = Sample()(policy, noise, 0, NONE)
    for i in range(33):
        alone = Sample()(kind(*(leaf[i : i + 1] for leaf in policy)), noise[i : i + 1], 0, NONE)
        np.testing.assert_array_equal(alone.action[0], together.action[i])
        np.testing.assert_array_equal(alone.extras["log_prob"][0], together.extras["log_prob"][i])
