"""Explorers over action values: chances by chi-square, masks, schedules, and values that cannot be used."""

import numpy as np
import pytest

from etude.base.errors import ConfigError, EnvironmentFault, NumericalError
from etude.base.schedules import Linear
from etude.base.spaces import Discrete
from etude.explore import Boltzmann, BoltzmannGumbel, EpsilonGreedy, Greedy, PerActorEpsilonGreedy
from etude.losses.distributions import Categorical
from etude.losses.masks import MaskedValues

N = 100_000
NONE = np.empty((0, 0))  # the memory of explorers that have none
EXPLORERS = [EpsilonGreedy(0.5), Boltzmann(0.7), BoltzmannGumbel(0.7), Greedy()]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def counts(explorer, values, rng, step=0, mask=None):
    values = np.asarray(values, np.float32)
    noise = explorer.draw(rng, N, Discrete(len(values)))
    output = np.repeat(values[None], N, 0)
    if mask is not None:
        output = MaskedValues(output, np.repeat(np.asarray(mask, bool)[None], N, 0))
    action = explorer(output, noise, step, NONE).action
    assert action.dtype == np.int64
    return np.bincount(action, minlength=len(values))


def chi_square(found, chances):
    expected = np.asarray(chances) * N
    return float(((found - expected) ** 2 / expected).sum())


def test_epsilon_greedy_shares_epsilon_among_all_actions(rng):
    # RLax's golden row.
    found = counts(EpsilonGreedy(0.2), [1, 2, 0, 0], rng)
    assert chi_square(found, [0.05, 0.85, 0.05, 0.05]) < 21.1  # 3 degrees of freedom, p = 1e-4


def test_the_first_of_equally_good_actions_is_the_greedy_one(rng):
    found = counts(EpsilonGreedy(0.2), [1, 1, 0, 0], rng)
    assert chi_square(found, [0.85, 0.05, 0.05, 0.05]) < 21.1


def test_random_actions_are_shared_among_the_allowed_ones(rng):
    found = counts(EpsilonGreedy(0.3), [3, 1, 0, -1e9, 2], rng, mask=[0, 1, 1, 0, 1])
    assert found[0] == found[3] == 0
    assert chi_square(found[[1, 2, 4]], [0.1, 0.1, 0.8]) < 18.4  # 2 degrees of freedom


@pytest.mark.parametrize("kind", [Boltzmann, BoltzmannGumbel])
def test_boltzmann_chances_are_the_softmax_of_values_over_temperature(kind, rng):
    values = np.array([1.0, 0.5, -0.5, 0.0])
    chances = np.exp(values / 0.5) / np.exp(values / 0.5).sum()
    assert chi_square(counts(kind(0.5), values, rng), chances) < 21.1


@pytest.mark.parametrize("kind", [Boltzmann, BoltzmannGumbel])
def test_a_masked_action_is_not_chosen_at_any_temperature(kind, rng):
    assert counts(kind(1e9), [-1e9, 1, 1e9, 0], rng, mask=[0, 1, 0, 1])[[0, 2]].sum() == 0
    assert counts(kind(1e9), [-np.inf, 1, -np.inf, 0], rng)[[0, 2]].sum() == 0


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_values_of_minus_a_thousand_million_are_explored_like_any_others(scale, rng):
    values = np.array([-1.0, -1.5, -2.5, -2.0])
    mask = [1, 1, 1, 0]
    chances = np.exp(values[:3]) / np.exp(values[:3]).sum()
    for kind in (Boltzmann, BoltzmannGumbel):
        found = counts(kind(scale), scale * values, rng, mask=mask)
        assert chi_square(found[:3], chances) < 18.4  # 2 degrees of freedom
        assert found[3] == 0
    for explorer in (EpsilonGreedy(0.3), PerActorEpsilonGreedy(0.3, 0.0, N)):
        assert chi_square(counts(explorer, scale * values, rng), [0.775, 0.075, 0.075, 0.075]) < 21.1
        assert chi_square(counts(explorer, scale * values, rng, mask=mask)[:3], [0.8, 0.1, 0.1]) < 18.4
    assert counts(Greedy(), scale * values, rng).tolist() == [N, 0, 0, 0]
    assert counts(Greedy(), scale * values, rng, mask=[0, 0, 1, 1]).tolist() == [0, 0, 0, N]


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
def test_masked_actions_are_never_chosen(explorer, rng):
    values = rng.normal(size=(20_000, 6)).astype(np.float32)
    masked = rng.random(values.shape) < 0.5
    masked[np.arange(len(values)), rng.integers(0, 6, len(values))] = False
    values[masked] = 1e9
    action = explorer(MaskedValues(values, ~masked), explorer.draw(rng, len(values), Discrete(6)), 0, NONE).action
    assert not masked[np.arange(len(values)), action].any()


def test_the_largest_noise_below_one_stays_within_the_actions():
    largest = np.nextafter(np.float32(1), np.float32(0))
    noise = np.array([[0, largest], [0, largest]], np.float32)
    for n in range(1, 70):
        assert (EpsilonGreedy(1.0)(np.zeros((2, n), np.float32), noise, 0, NONE).action == n - 1).all()
        masked = MaskedValues(np.zeros((2, n + 1), np.float32), np.array([[True] * n + [False]] * 2))
        assert (EpsilonGreedy(1.0)(masked, noise, 0, NONE).action == n - 1).all()


def test_epsilon_follows_its_schedule_over_the_run(rng):
    explorer = EpsilonGreedy(Linear(1.0, 0.0, 0.5), total=1000)
    for step, chance in ((0, 1.0), (250, 0.5), (500, 0.0), (900, 0.0)):
        random = counts(explorer, [0, 0, 0, 1], rng, step)[:3].sum() / N
        assert random == pytest.approx(0.75 * chance, abs=0.01)


def test_temperature_follows_its_schedule_over_the_run(rng):
    explorer = Boltzmann(Linear(1e6, 1e-3, 1.0), total=10)
    assert chi_square(counts(explorer, [0, 1], rng, 0), [0.5, 0.5]) < 15.2  # 1 degree of freedom
    assert counts(explorer, [0, 1], rng, 10)[0] == 0


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused_with_the_environment(explorer, bad, rng):
    values = np.zeros((3, 2), np.float32)
    values[1, 0] = bad
    with pytest.raises(NumericalError, match="environment 1 of 3.*learning rate"):
        explorer(values, explorer.draw(rng, 3, Discrete(2)), 0, NONE)


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
def test_a_mask_that_allows_nothing_is_the_environments_fault(explorer, rng):
    values = MaskedValues(np.zeros((2, 2), np.float32), np.array([[True, False], [False, False]]))
    with pytest.raises(EnvironmentFault, match="Environment 1 of 2 allows no action"):
        explorer(values, explorer.draw(rng, 2, Discrete(2)), 0, NONE)


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
def test_a_diverged_network_is_not_taken_for_a_mask(explorer, rng):
    noise = explorer.draw(rng, 2, Discrete(2))
    values = np.array([[0, 1], [-np.inf, -np.inf]], np.float32)
    with pytest.raises(NumericalError, match="environment 1 of 2.*weights have diverged"):
        explorer(values, noise, 0, NONE)
    values[1] = [0, -np.inf]
    with pytest.raises(NumericalError, match="environment 1 of 2.*weights have diverged"):
        explorer(MaskedValues(values, np.ones((2, 2), bool)), noise, 0, NONE)


def test_a_distribution_is_refused_with_what_to_use_instead(rng):
    with pytest.raises(ConfigError, match="EpsilonGreedy chooses by action values.*a Categorical.*Sample"):
        EpsilonGreedy(0.1)(Categorical(np.zeros((1, 2), np.float32)), np.zeros((1, 2), np.float32), 0, NONE)


@pytest.mark.parametrize("make", [lambda: EpsilonGreedy(1.5), lambda: Boltzmann(0.0), lambda: BoltzmannGumbel(-1.0)])
def test_impossible_settings_are_refused(make):
    with pytest.raises(ConfigError, match="expected a number"):
        make()


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
def test_drawing_in_parts_gives_the_same_numbers_as_at_once(explorer):
    whole = explorer.draw(np.random.default_rng(5), 8, Discrete(3))
    rng = np.random.default_rng(5)
    parts = [explorer.draw(rng, steps, Discrete(3)) for steps in (3, 4, 1)]
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda explorer: type(explorer).__name__)
def test_an_action_does_not_depend_on_the_other_environments(explorer, rng):
    values = rng.normal(size=(40, 3)).astype(np.float32)
    noise = explorer.draw(rng, 40, Discrete(3))
    together = explorer(values, noise, 0, NONE).action
    alone = [explorer(values[i : i + 1], noise[i : i + 1], 0, NONE).action[0] for i in range(40)]
    np.testing.assert_array_equal(together, alone)
