"""The documented policies over action values: their chances in a run and by single calls, and what they refuse."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from etude.base.errors import ConfigError, EnvironmentFault, NumericalError
from etude.base.schedules import Linear
from etude.base.spaces import Discrete
from etude.explore import (
    AdaptiveEpsGreedyPolicy,
    BoltzmannGumbelQPolicy,
    BoltzmannQPolicy,
    EpsGreedyQPolicy,
    GreedyQPolicy,
    MaxBoltzmannQPolicy,
    SoftmaxPolicy,
)
from etude.losses.masks import MaskedValues

N, SINGLE = 100_000, 10_000
NONE = np.empty((0, 0))  # the state of explorers that have none
VALUES = np.array([1.0, 0.5, -0.5, 0.0])
STEP = 16  # each of the four actions has had four of them


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


def mostly_best(epsilon, otherwise):
    return epsilon * np.asarray(otherwise) + (1 - epsilon) * np.array([1, 0, 0, 0])


# explorer, how its single call is made at STEP, the chances of the actions
CASES = [
    (EpsGreedyQPolicy(0.2), (VALUES,), mostly_best(0.2, [0.25] * 4)),
    (AdaptiveEpsGreedyPolicy(1.0, 0.1, 0.05), (VALUES, STEP), mostly_best(0.2, [0.25] * 4)),
    (BoltzmannQPolicy(0.5), (VALUES,), softmax(VALUES / 0.5)),
    (BoltzmannQPolicy(0.5, (-0.5, 1.5)), (VALUES,), softmax(np.array([1.5, 1.0, -0.5, 0.0]))),
    (MaxBoltzmannQPolicy(0.3, 0.5), (VALUES,), mostly_best(0.3, softmax(VALUES / 0.5))),
    (BoltzmannGumbelQPolicy(3.0), (VALUES, STEP), softmax(VALUES / 1.5)),
    (SoftmaxPolicy(), (4, softmax(VALUES)), softmax(VALUES)),
]
NAMED = pytest.mark.parametrize(("explorer", "single", "chances"), CASES, ids=lambda v: type(v).__name__)
OVER_VALUES = [case[0] for case in CASES[:-1]] + [GreedyQPolicy()]
EXPLORERS = pytest.mark.parametrize("explorer", OVER_VALUES, ids=lambda explorer: type(explorer).__name__)


def choose(explorer, values, rng, step=STEP, allowed=None):
    values = np.atleast_2d(np.asarray(values, np.float32))
    noise = explorer.draw(rng, len(values), Discrete(values.shape[1]))
    return explorer(values if allowed is None else MaskedValues(values, allowed), noise, step, NONE).action


def chi_square(found, chances):
    expected = np.asarray(chances) * found.sum()
    return float(((found - expected) ** 2 / expected).sum())


@NAMED
def test_actions_of_a_run_have_the_documented_chances(explorer, single, chances):
    values = softmax(VALUES) if isinstance(explorer, SoftmaxPolicy) else VALUES
    action = choose(explorer, np.repeat(values[None], N, 0), np.random.default_rng(1))
    assert action.dtype == np.int64
    assert chi_square(np.bincount(action, minlength=4), chances) < 21.1  # 3 degrees of freedom, p = 1e-4


@NAMED
def test_single_calls_have_the_same_chances(explorer, single, chances):
    explorer = dataclasses.replace(explorer, rng=np.random.default_rng(2))
    actions = [explorer.select_action(*single) for _ in range(SINGLE)]
    assert {type(action) for action in actions} == {int}
    assert chi_square(np.bincount(actions, minlength=4), chances) < 21.1


def test_the_greedy_policy_takes_the_first_of_the_best():
    assert choose(GreedyQPolicy(), [[0, 2, 2], [3, 3, 0]], np.random.default_rng(1)).tolist() == [1, 0]
    assert GreedyQPolicy().select_action(np.array([0, 2, 2])) == 1


def test_adaptive_epsilon_falls_linearly_to_its_least():
    policy = AdaptiveEpsGreedyPolicy(0.9, 0.2, 0.001)
    assert [policy.epsilon(step) for step in (0, 100, 700, 10**6)] == pytest.approx([0.9, 0.8, 0.2, 0.2])
    rows = np.repeat([[0, 0, 0, 1]], N, 0)
    for step, epsilon in ((0, 0.9), (350, 0.55), (700, 0.2), (10**6, 0.2)):
        random = (choose(policy, rows, np.random.default_rng(3), step) != 3).mean()
        assert random == pytest.approx(0.75 * epsilon, abs=0.006)


def test_gumbel_exploration_starts_at_C_and_falls_with_the_root_of_the_steps_per_action():
    policy, rows = BoltzmannGumbelQPolicy(2.0), np.repeat([[0, 1]], N, 0)
    for step, scale in ((0, 2.0), (2, 2.0), (8, 1.0), (200, 0.2)):
        found = np.bincount(choose(policy, rows, np.random.default_rng(4), step), minlength=2)
        assert chi_square(found, softmax(np.array([0, 1]) / scale)) < 15.2  # 1 degree of freedom


def test_a_parameter_may_be_changed_at_any_time():
    policy, rows = EpsGreedyQPolicy(1.0), np.repeat([[0, 1]], N, 0)
    assert (choose(policy, rows, np.random.default_rng(5)) == 0).mean() == pytest.approx(0.5, abs=0.01)
    policy.eps = 0.0
    assert choose(policy, rows, np.random.default_rng(5)).all()


def test_explorers_are_equal_where_type_and_present_parameters_are():
    policy = EpsGreedyQPolicy(0.1)
    other = EpsGreedyQPolicy(0.1, rng=np.random.default_rng(9))
    other.select_action(VALUES)
    assert policy == other
    other.eps = 0.2
    assert policy != other
    assert EpsGreedyQPolicy(0.1) != MaxBoltzmannQPolicy(0.1)
    assert BoltzmannQPolicy(clip=(-1, 1)) != BoltzmannQPolicy()


@EXPLORERS
def test_copies_and_pickles_are_equal_and_go_on_with_the_same_numbers(explorer):
    for other in (copy.deepcopy(explorer), pickle.loads(pickle.dumps(explorer))):
        assert other == explorer
        np.testing.assert_array_equal(other.rng.random(3), copy.deepcopy(explorer.rng).random(3))


def test_single_calls_repeat_with_the_same_generator():
    rolls = [
        [EpsGreedyQPolicy(1.0, rng=np.random.default_rng(seed)).select_action(np.zeros(1000)) for seed in seeds]
        for seeds in ((1, 2), (1, 2), (3, 4))
    ]
    assert rolls[0] == rolls[1] != rolls[2]
    assert EpsGreedyQPolicy(1.0).select_action(np.zeros(1000)) == EpsGreedyQPolicy(1.0).select_action(np.zeros(1000))


@EXPLORERS
def test_masked_actions_are_never_chosen(explorer):
    rng = np.random.default_rng(6)
    values = rng.normal(size=(20_000, 6)).astype(np.float32)
    masked = rng.random(values.shape) < 0.5
    masked[np.arange(len(values)), rng.integers(0, 6, len(values))] = False
    values[masked] = 1e9
    assert not masked[np.arange(len(values)), choose(explorer, values, rng, allowed=~masked)].any()
    values[masked] = -np.inf
    assert not masked[np.arange(len(values)), choose(explorer, values, rng)].any()


@EXPLORERS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(explorer, bad):
    with pytest.raises(NumericalError, match="environment 1 of 3"):
        choose(explorer, [[0, 0], [bad, 0], [0, 0]], np.random.default_rng(1))


@EXPLORERS
def test_a_mask_that_allows_nothing_is_the_environments_fault(explorer):
    with pytest.raises(EnvironmentFault, match="Environment 1 of 2 allows no action"):
        choose(explorer, np.zeros((2, 2)), np.random.default_rng(1), allowed=np.array([[True, False], [False, False]]))


@EXPLORERS
def test_values_of_minus_a_thousand_million_may_be_chosen(explorer):
    assert choose(explorer, [[-1e9, -1e9], [0, 1]], np.random.default_rng(1)).shape == (2,)


@EXPLORERS
def test_drawing_in_parts_gives_the_same_numbers_as_at_once(explorer):
    whole, rng = explorer.draw(np.random.default_rng(5), 8, Discrete(3)), np.random.default_rng(5)
    parts = [explorer.draw(rng, steps, Discrete(3)) for steps in (3, 5)]
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("values", [np.zeros((2, 3)), np.zeros((1, 3)), 1.0, []])
def test_single_calls_take_one_row(values):
    with pytest.raises(ConfigError, match=r"EpsGreedyQPolicy.select_action takes the numbers of one state.*shape"):
        EpsGreedyQPolicy().select_action(values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpsGreedyQPolicy(1.5), "EpsGreedyQPolicy: eps = 1.5; expected a number from 0 to 1"),
        (lambda: EpsGreedyQPolicy(Linear(1, 0)), r"eps = Linear.*a schedule goes to EpsilonGreedy"),
        (lambda: EpsGreedyQPolicy(float("nan")), "eps = nan; expected a finite number"),
        (lambda: AdaptiveEpsGreedyPolicy(0.1, 0.5), r"min_eps = 0.5 is above initial_eps = 0.1.*EpsGreedyQPolicy"),
        (lambda: AdaptiveEpsGreedyPolicy(decay_rate=-1), "decay_rate = -1; expected a number of at least 0"),
        (lambda: BoltzmannQPolicy(0), "tau = 0; expected a number above 0"),
        (lambda: BoltzmannQPolicy(clip=(1, -1)), r"clip = \(1, -1\); expected \(low, high\)"),
        (lambda: MaxBoltzmannQPolicy(eps=-1), "eps = -1"),
        (lambda: MaxBoltzmannQPolicy(clip=(1, 1)), "clip"),
        (lambda: BoltzmannGumbelQPolicy(0), "C = 0; expected a number above 0"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("explorer", "name"),
    [
        (EpsGreedyQPolicy(), "eps"),
        (AdaptiveEpsGreedyPolicy(), "decay_rate"),
        (BoltzmannQPolicy(), "tau"),
        (MaxBoltzmannQPolicy(), "tau"),
        (BoltzmannGumbelQPolicy(), "C"),
    ],
)
def test_a_parameter_that_became_impossible_is_refused_when_it_is_used(explorer, name):
    setattr(explorer, name, -1.0)
    with pytest.raises(ConfigError, match=f"{name} = -1.0"):
        choose(explorer, VALUES, np.random.default_rng(1))


@EXPLORERS
def test_what_is_no_value_is_refused_under_the_name_that_the_user_gave(explorer):
    for output in (np.zeros(3, np.float32), np.zeros((2, 3, 1), np.float32)):
        noise = explorer.draw(np.random.default_rng(0), 3, Discrete(3))
        said = f"^{type(explorer).__name__} chooses by action values .*; the agent returned an array of shape"
        with pytest.raises(ConfigError, match=said):
            explorer(output, noise, STEP, NONE)
