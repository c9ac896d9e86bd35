"""Random actions that last: how often they begin, how long they last, and what ends them."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Discrete
from etude.explore import EpsilonZGreedy
from etude.losses.masks import MaskedValues

ROWS, ACTIONS = 20_000, 4


def played(explorer, values, steps, rng):
    """Actions [steps, N] for the same values [N, n] at every step, from the start of an episode."""
    state, found = np.full((len(values), explorer.state_size), np.nan), []
    for step in range(steps):
        noise = explorer.draw(rng, len(values), Discrete(values.shape[1]))
        found.append(explorer(values, noise, step, state).action)
    return np.stack(found)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("mu", [2.0, 3.0])
def test_as_many_actions_are_random_as_begin_and_last(mu, rng):
    values = np.zeros((ROWS, ACTIONS), np.float32)
    found = played(EpsilonZGreedy(1.0, mu), values, 6, rng)
    assert found.dtype == np.int64
    np.testing.assert_allclose(np.bincount(found[0]) / ROWS, 1 / ACTIONS, atol=0.015)
    # An action goes on where it lasts, P(n > 1) = 1 - 1 / zeta(mu), or is drawn again.
    lasts = 1 - 1 / {2.0: np.pi**2 / 6, 3.0: 1.2020569}[mu]
    assert (found[1] == found[0]).mean() == pytest.approx(lasts + (1 - lasts) / ACTIONS, abs=0.015)


def test_what_lasts_is_repeated_whatever_the_values_and_then_the_best_is_taken(rng):
    explorer, state = EpsilonZGreedy(0.5), np.full((1, 2), np.nan)
    # The last action begins; 0.8 lies between P(n <= 2) and P(n <= 3).
    noise = np.array([[0.4, 0.99, 0.8]], np.float32)
    found = [int(explorer(np.eye(4, dtype=np.float32)[[0]], noise, 0, state).action[0])]
    greedy = np.array([[0.6, 0.0, 0.0]], np.float32)
    found += [int(explorer(np.eye(4, dtype=np.float32)[[i]], greedy, i, state).action[0]) for i in (1, 2, 1, 2)]
    assert found == [3, 3, 3, 1, 2]


def test_an_action_of_minus_a_thousand_million_lasts_like_any_other():
    explorer, state = EpsilonZGreedy(1.0), np.full((1, 2), np.nan)
    values, long = np.array([[0, 0, -1e9]], np.float32), np.array([[0.0, 0.99, 0.999]], np.float32)
    assert [explorer(values, noise, 0, state).action.tolist() for noise in (long, 0 * long)] == [[2], [2]]


def test_an_action_ends_where_it_is_forbidden_and_with_its_episode():
    explorer, state = EpsilonZGreedy(1.0), np.full((2, 2), np.nan)
    long = np.array([[0.0, 0.99, 0.999]] * 2, np.float32)
    assert explorer(np.zeros((2, 3), np.float32), long, 0, state).action.tolist() == [2, 2]
    masked = MaskedValues(np.zeros((2, 3), np.float32), np.array([[1, 1, 0], [1, 1, 1]], bool))
    state_after = state.copy()
    assert explorer(masked, np.zeros((2, 3), np.float32), 1, state_after).action.tolist() == [0, 2]
    state[1] = np.nan
    assert explorer(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), 1, state).action.tolist() == [2, 0]


def test_without_epsilon_it_is_greedy_and_a_schedule_is_followed(rng):
    values = rng.normal(size=(50, ACTIONS)).astype(np.float32)
    np.testing.assert_array_equal(played(EpsilonZGreedy(0.0), values, 2, rng), np.tile(values.argmax(1), (2, 1)))
    falling, state = EpsilonZGreedy(Linear(1.0, 0.0), total=10), np.full((50, 2), np.nan)
    last = falling(values, falling.draw(rng, 50, Discrete(ACTIONS)), 10, state).action
    np.testing.assert_array_equal(last, values.argmax(1))


@pytest.mark.parametrize("mu", [1.0, np.nan, np.inf])
def test_an_exponent_without_a_distribution_is_refused(mu):
    with pytest.raises(ConfigError, match="expected a finite number above 1"):
        EpsilonZGreedy(0.1, mu)
