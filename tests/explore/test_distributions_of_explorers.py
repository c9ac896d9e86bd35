"""Explorers say the distribution that they draw actions from."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete
from etude.explore import (
    AdjustedExplorer,
    Boltzmann,
    BoltzmannGumbel,
    BoltzmannQPolicy,
    CorrelatedSample,
    Each,
    EpsGreedyQPolicy,
    EpsilonGreedy,
    EpsilonZGreedy,
    GaussianNoise,
    GaussianWhiteNoiseProcess,
    Greedy,
    GreedyQPolicy,
    MaxBoltzmannQPolicy,
    PerActorEpsilonGreedy,
    PerActorGaussianNoise,
    Sample,
    Softened,
    SoftmaxPolicy,
    WithLogProb,
)
from etude.explore.explorer import AtStep, distribution_of, with_log_prob
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
    (MaxBoltzmannQPolicy(0.4, 0.7), VALUES),
    (EpsGreedyQPolicy(0.3), VALUES),
    (GreedyQPolicy(), VALUES),
    (AtStep(EpsilonGreedy(0.3), 5), VALUES),
    (WithLogProb(Boltzmann(0.7)), VALUES),
]


class OwnExplorer:
    """An explorer of a user, who says nothing of its probabilities."""

    state_size = 0

    def of(self, columns):
        return self

    def draw(self, rng, steps, action_space):
        return rng.random((steps, 1), np.float32)

    def __call__(self, output, noise, step, state):
        return Choice(output.argmax(1), {})


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
    for explorer in (Greedy(), EpsilonZGreedy(0.1), GaussianNoise(0.0), GaussianNoise(Linear(0.1, 0.0)), OwnExplorer()):
        assert with_log_prob(explorer) is explorer


@pytest.mark.parametrize(
    "explorer", [CorrelatedSample(0.5, 2), EpsilonZGreedy(0.1), OwnExplorer()], ids=lambda value: type(value).__name__
)
def test_a_distribution_that_is_not_known_is_refused_with_what_to_do(explorer):
    with pytest.raises(ConfigError, match=f"{type(explorer).__name__} does not know the probabilities.*give explorer="):
        distribution_of(explorer, VALUES, 0)


def test_a_softening_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="amount"):
        Softened(0.0)
    noise = Softened(0.5).draw(np.random.default_rng(0), 3, Box(-1, 1, (2,), np.float32))
    assert noise.shape == (3, 2)


def test_each_actor_has_the_probabilities_of_its_own_epsilon():
    explorer = with_log_prob(PerActorEpsilonGreedy(0.5, 1.0, 2))  # 0.5 and 0.25
    for noise, chances in (
        ([[0.9, 0], [0.9, 0]], (0.5 + 0.5 / 3, 0.75 + 0.25 / 3)),
        ([[0, 0], [0, 0.99]], (0.5 / 3, 0.25 / 3)),
    ):
        choice = explorer(VALUES, np.array(noise, np.float32), 0, np.empty((2, 0)))
        np.testing.assert_allclose(np.exp(choice.extras["log_prob"]), chances, rtol=1e-5)
    one = explorer.of(np.array([1]))(VALUES[:1], np.array([[0.9, 0]], np.float32), 0, np.empty((1, 0)))
    np.testing.assert_allclose(np.exp(one.extras["log_prob"]), [0.75 + 0.25 / 3], rtol=1e-5)


def normal_density(x, mean, std=0.5):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))


def noisy_choices(explorer, mode, step=0, rows=ROWS):
    policy = Deterministic(np.repeat(np.array([mode], np.float32), rows, 0))
    noise = explorer.draw(np.random.default_rng(3), rows, Box(-1, 1, (len(mode),), np.float32))
    return with_log_prob(explorer)(policy, noise, step, np.empty((rows, 0)))


@pytest.mark.parametrize("explorer", [GaussianNoise(0.5), PerActorGaussianNoise(0.5, 1.0, 1)], ids=["one", "by actor"])
def test_clipped_noise_has_a_density_inside_the_bounds_and_a_probability_at_them(explorer):
    choice = noisy_choices(explorer, [0.6])
    action, chances = choice.action[:, 0], np.exp(choice.extras["log_prob"].astype(np.float64))
    for bound in (-1, 1):
        at_bound = action == bound
        np.testing.assert_array_equal(choice.extras["action_clipped"][at_bound], 1)
        assert len(np.unique(chances[at_bound])) == 1
        assert abs(chances[at_bound][0] - at_bound.mean()) < 4 * 0.5 / np.sqrt(ROWS)
    inside = np.abs(action) < 1
    np.testing.assert_array_equal(choice.extras["action_clipped"][inside], 0)
    density, edges = np.histogram(action[inside], 20, (-1, 1))
    centres = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_allclose(density / ROWS / 0.1, normal_density(centres, 0.6), atol=0.06)
    np.testing.assert_allclose(chances[inside], normal_density(action[inside], 0.6), rtol=1e-4)


def test_several_numbers_of_an_action_multiply_their_probabilities():
    both, first, second = (noisy_choices(GaussianNoise(0.5), mode) for mode in ([0.9, -0.3], [0.9], [-0.3]))
    assert both.action.shape == (ROWS, 2) and len(np.unique(both.extras["action_clipped"])) == 2
    rows = np.flatnonzero((both.action[:, 0] == 1) & (np.abs(both.action[:, 1]) < 1))[:50]
    tail = first.extras["log_prob"][first.action[:, 0] == 1][0]
    inside = np.log(normal_density(both.action[rows, 1], -0.3))
    np.testing.assert_allclose(both.extras["log_prob"][rows], tail + inside, rtol=1e-4, atol=1e-5)
    assert second.extras["log_prob"].shape == (ROWS,)


def test_random_first_steps_are_uniform():
    choice = noisy_choices(GaussianNoise(0.1, random_steps=10), [0.9, 0.0], step=9, rows=100)
    np.testing.assert_allclose(choice.extras["log_prob"], -2 * np.log(2), rtol=1e-6)
    assert not choice.extras["action_clipped"].any()
    assert (
        noisy_choices(GaussianNoise(0.1, random_steps=10), [0.9, 0.0], step=10, rows=100).extras["action_clipped"].any()
    )


def test_a_noise_process_has_the_density_of_what_it_adds():
    process, output = GaussianWhiteNoiseProcess(mu=0.1, sigma=0.5), np.full((4, 2), 0.2, np.float32)
    noise = process.draw(np.random.default_rng(0), 4, Box(-1, 1, (2,), np.float32))
    known = with_log_prob(process)(output, noise, 0, np.empty((4, 0))).extras["log_prob"]
    np.testing.assert_allclose(known, np.log(normal_density(0.5 * noise, 0)).sum(1), rtol=1e-4)


def test_explorers_of_explorers_pass_the_probabilities_on():
    """In a run: at a step of its schedule, of several explorers, and where rules change epsilon."""
    noise = np.array([[0.9, 0], [0.9, 0]], np.float32)
    each = Each((EpsilonGreedy(0.5), EpsilonGreedy(0.2)))
    adjusted = AdjustedExplorer(lambda factors: EpsilonGreedy(0.5 * factors.get("epsilon", 1.0)))
    at_step = AtStep(EpsilonGreedy(Linear(1.0, 0.0), total=10), 5)
    for explorer, epsilon in ((each, [0.5, 0.2]), (adjusted, [0.5, 0.5]), (at_step, [0.5, 0.5])):
        known = with_log_prob(explorer)
        assert type(known) is type(explorer)
        choice = known.of(np.arange(2))(VALUES, noise, 0, np.empty((2, 0)))
        np.testing.assert_allclose(np.exp(choice.extras["log_prob"]), 1 - np.array(epsilon) * 2 / 3, rtol=1e-5)
    mixed = Each((Sample(), GaussianNoise(0.5)))  # the second has one extra more
    assert with_log_prob(mixed) is mixed


def test_a_policy_that_is_sampled_without_log_probabilities_gets_them():
    policy, noise = TanhGaussian(VALUES, np.zeros_like(VALUES)), np.full((2, 3), 0.3, np.float32)
    plain, known = Sample(log_prob=False), with_log_prob(Sample(log_prob=False))
    np.testing.assert_array_equal(plain(policy, noise, 0, None).action, known(policy, noise, 0, None).action)
    np.testing.assert_array_equal(
        known(policy, noise, 0, None).extras["log_prob"], policy.sample_with_log_prob(noise)[1]
    )
