"""Autoregressive choices against the enumeration of all of them. In NumPy."""

import itertools

import numpy as np
import pytest

from etude.base import trees
from etude.losses.distributions import Categorical, Conditional, MultiCategorical

SIZES = (3, 2, 4)
ALL = list(itertools.product(*map(range, SIZES)))


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def policy(rng):
    shapes = [(2, 1, 3), (2, 3, 2), (2, 6, 4)]
    return Conditional(tuple(2 * rng.standard_normal(shape).astype(np.float32) for shape in shapes))


def by_hand(policy, row, action):
    """log p(a1) + log p(a2 | a1) + log p(a3 | a1, a2)."""
    rows = [0, action[0], 2 * action[0] + action[1]]
    found = 0.0
    for logits, before, choice in zip(policy.logits, rows, action, strict=True):
        weights = np.exp(logits[row, before].astype(np.float64))
        found += np.log(weights[choice] / weights.sum())
    return found


def masks(rng):
    """The first part forbids 1, the second depends on the first, and the third forbids 2 and 3."""
    first = np.array([[[True, False, True]]] * 2)
    second = np.array([[[True, False], [True, True], [False, True]]] * 2)
    return (first, second, np.array([[[True, True, False, False]]] * 2))


def test_log_probabilities_are_those_of_the_chain_rule_and_sum_to_one(policy):
    actions = np.array(ALL)
    for row in range(2):
        one = trees.map(lambda x, row=row: np.repeat(x[row : row + 1], len(ALL), 0), policy)
        found = one.log_prob(actions)
        np.testing.assert_allclose(found, [by_hand(policy, row, action) for action in ALL], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(policy.log_probabilities()[row], found, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(policy.log_probabilities()).sum(-1), 1, rtol=1e-5)


def test_entropy_and_divergence_are_the_sums_over_all_actions(policy, rng):
    other = Conditional(tuple(x + rng.standard_normal(x.shape).astype(np.float32) for x in policy.logits))
    mine, theirs = (np.array([by_hand(each, 0, action) for action in ALL]) for each in (policy, other))
    assert policy.entropy()[0] == pytest.approx(-(np.exp(mine) * mine).sum(), rel=1e-5)
    assert policy.kl(other)[0] == pytest.approx((np.exp(mine) * (mine - theirs)).sum(), rel=1e-5)
    np.testing.assert_allclose(policy.kl(policy), 0, atol=1e-6)


def test_the_mode_is_the_likeliest_action_and_not_the_likeliest_first_choice():
    first = np.log(np.float32([[[0.6, 0.4]]]))
    second = np.log(np.float32([[[0.5, 0.5], [0.01, 0.99]]]))
    np.testing.assert_array_equal(Conditional((first, second)).mode(), [[1, 1]])


def test_the_mode_is_that_of_the_enumeration(policy):
    best = [max(ALL, key=lambda action, row=row: by_hand(policy, row, action)) for row in range(2)]
    np.testing.assert_array_equal(policy.mode(), best)


def test_samples_follow_the_probabilities_and_bring_their_log_probability(policy, rng):
    n = 100_000
    one = trees.map(lambda x: np.repeat(x[:1], n, 0), policy)
    noise = rng.random((n, 3), np.float32)
    action, log_prob = one.sample_with_log_prob(noise)
    np.testing.assert_array_equal(action, one.sample(noise))
    np.testing.assert_allclose(log_prob, one.log_prob(action), rtol=1e-4, atol=1e-5)
    counts = np.bincount(action @ [8, 4, 1], minlength=24)
    expected = n * np.exp(policy.log_probabilities()[0])
    assert ((counts - expected) ** 2 / expected).sum() < 57.0  # 23 degrees of freedom, p = 1e-4


def test_without_dependence_it_is_the_distribution_of_independent_choices(rng):
    parts = [rng.standard_normal((5, n)).astype(np.float32) for n in SIZES]
    repeated = [np.repeat(x[:, None], n, 1) for x, n in zip(parts, (1, 3, 6), strict=True)]
    alike, independent = Conditional(tuple(repeated)), MultiCategorical(tuple(parts))
    noise = rng.random((5, 3), np.float32)
    np.testing.assert_array_equal(alike.sample(noise), independent.sample(noise))
    np.testing.assert_array_equal(alike.mode(), independent.mode())
    np.testing.assert_allclose(alike.entropy(), independent.entropy(), rtol=1e-5)
    action = alike.sample(noise)
    np.testing.assert_allclose(alike.log_prob(action), independent.log_prob(action), rtol=1e-5)


def test_what_a_mask_forbids_is_never_chosen_also_where_it_depends_on_the_choice_before(policy, rng):
    masked = Conditional(policy.logits, masks(rng))
    many = trees.map(lambda x: np.repeat(x[:1], 5_000, 0), masked)
    action, log_prob = many.sample_with_log_prob(rng.random((5_000, 3), np.float32))
    assert {tuple(a) for a in action[:, :2].tolist()} == {(0, 0), (2, 1)}
    assert set(action[:, 2].tolist()) == {0, 1}
    np.testing.assert_allclose(np.exp(masked.log_probabilities()).sum(-1), 1, rtol=1e-5)
    assert masked.entropy()[0] == pytest.approx(-log_prob.mean(), abs=0.03)
    assert masked.mode()[0, :2].tolist() in ([0, 0], [2, 1])
    np.testing.assert_array_equal(masked.kl(masked), 0)


def test_logits_of_sequences_are_taken_as_they_are(rng):
    logits = (
        rng.standard_normal((4, 7, 1, 2)).astype(np.float32),
        rng.standard_normal((4, 7, 2, 3)).astype(np.float32),
    )
    long, flat = Conditional(logits), Conditional(tuple(x.reshape(28, *x.shape[2:]) for x in logits))
    action = np.stack([rng.integers(0, 2, (4, 7)), rng.integers(0, 3, (4, 7))], -1)
    np.testing.assert_allclose(long.log_prob(action).reshape(-1), flat.log_prob(action.reshape(28, 2)))
    np.testing.assert_allclose(long.entropy().reshape(-1), flat.entropy())
    np.testing.assert_array_equal(long.mode().reshape(28, 2), flat.mode())


def test_one_part_is_a_categorical(rng):
    logits = rng.standard_normal((6, 5)).astype(np.float32)
    np.testing.assert_allclose(Conditional((logits[:, None],)).entropy(), Categorical(logits).entropy(), rtol=1e-5)
