"""Explorers say the distribution that they draw actions from."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete
from etude.explore import (
    Boltzmann,
    BoltzmannGumbel,
    BoltzmannQPolicy,
    EpsGreedyQPolicy,
    EpsilonGreedy,
    EpsilonZGreedy,
    GaussianNoise,
    Greedy,
    GreedyQPolicy,
    MaxBoltzmannQPolicy,
    Sample,
    Softened,
    SoftmaxPolicy,
    WithLogProb,
)
from etude.explore.at_step import AtStep
from etude.explore.distributions import distribution_of
from etude.explore.log_prob import with_log_prob
from etude.losses.distributions import Categorical, Deterministic, Gaussian, TanhGaussian
from etude.losses.masks import MaskedValues

VALUES = np.array([[1.0, 3.0, 2.0], [0.5, 0.0, 0.2]], np.float32)
MASKED = MaskedValues(VALUES, np.array([[True, False, True], [True, True, True]]))
ROWS = 40_000
CASES = [
    (EpsilonGreedy(0.3), VALUES),
    (EpsilonGreedy(0.3), MASKED),
    (Boltzmann(0.7), VALUES),
    (Boltzmann(0.7), MASKED),
    (BoltzmannGumbel(0.7), VALUES),
    (Greedy(), VALUES),
    (Greedy(), MASKED),
    (Greedy(), Categorical(VALUES)),
    (Sample(), Categorical(*MASKED)),
    (Softened(0.3), MASKED),
    (Softened(0.3), Categorical(*MASKED)),
    (SoftmaxPolicy(), np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], np.float32)),
    (BoltzmannQPolicy(0.7), VALUES),
    (EpsGreedyQPolicy(0.3), VALUES),
    (GreedyQPolicy(), VALUES),
    (AtStep(EpsilonGreedy(0.3), 5), VALUES),
    (WithLogProb(Boltzmann(0.7)), VALUES),
]


def repeated(output):
    if isinstance(output, np.ndarray):
        return np.repeat(output, ROWS, 0)
    return type(output)(*(np.repeat(part, ROWS, 0) if len(part) else part for part in output))


@pytest.mark.parametrize(("explorer", "output"), CASES, ids=lambda value: type(value).__name__)
def test_actions_are_as_frequent_as_the_distribution_says(explorer, output):
    many, rng = repeated(output), np.random.default_rng(0)
    noise = explorer.draw(rng, 2 * ROWS, Discrete(3))
    action = explorer(many, noise, 0, np.empty((2 * ROWS, 0))).action.reshape(2, ROWS)
    chances = distribution_of(explorer, output, 0).probabilities()
    found = np.stack([np.bincount(row, minlength=3) for row in action]) / ROWS
    np.testing.assert_allclose(found, chances, atol=4 * 0.5 / np.sqrt(ROWS))
    assert ((chances > 0) >= (found > 0)).all()


def test_box_actions_are_the_mode_or_softened_around_it():
    policy = TanhGaussian(np.array([[0.3, -0.2]], np.float32), np.zeros((1, 2), np.float32))
    assert isinstance(distribution_of(Greedy(), policy, 0), Deterministic)
    softened = distribution_of(Softened(0.5), policy, 0)
    assert isinstance(softened, Gaussian)
    np.testing.assert_allclose(softened.mean, np.tanh([[0.3, -0.2]]), rtol=1e-6)
    np.testing.assert_allclose(softened.log_std, np.log(0.5), rtol=1e-6)


def test_log_probabilities_are_added_to_actions_that_stay_the_same():
    explorer, rng = EpsilonGreedy(0.3), np.random.default_rng(1)
    noise, state = explorer.draw(rng, 2, Discrete(3)), np.empty((2, 0))
    plain, known = explorer(VALUES, noise, 0, state), with_log_prob(explorer)(VALUES, noise, 0, state)
    np.testing.assert_array_equal(plain.action, known.action)
    expected = [np.log(0.8) if a == best else np.log(0.1) for a, best in zip(plain.action, (1, 0), strict=True)]
    np.testing.assert_allclose(known.extras["log_prob"], expected, rtol=1e-5)


def test_explorers_whose_probabilities_are_not_known_stay_as_they_are():
    noise = GaussianNoise(0.1)
    assert with_log_prob(noise) is noise and with_log_prob(Greedy()) == Greedy()
    z_greedy = EpsilonZGreedy(0.1)
    assert with_log_prob(z_greedy) is z_greedy


@pytest.mark.parametrize(
    "explorer",
    [GaussianNoise(0.1), EpsilonZGreedy(0.1), MaxBoltzmannQPolicy(0.1)],
    ids=lambda value: type(value).__name__,
)
def test_a_distribution_that_is_not_known_is_refused_with_what_to_do(explorer):
    with pytest.raises(ConfigError, match=f"{type(explorer).__name__} does not know the probabilities.*give explorer="):
        distribution_of(explorer, VALUES, 0)


def test_a_softening_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="amount"):
        Softened(0.0)
    noise = Softened(0.5).draw(np.random.default_rng(0), 3, Box(-1, 1, (2,), np.float32))
    assert noise.shape == (3, 2)
