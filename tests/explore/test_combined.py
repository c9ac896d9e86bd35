"""Explorers made of others, one for each environment or each agent, and actions taken as they are."""

import pickle

import numpy as np
import pytest

from etude.base.data import Choice
from etude.base.errors import ConfigError, NumericalError
from etude.base.spaces import Box, Discrete, MultiDiscrete
from etude.explore import (
    AsIs,
    Boltzmann,
    BoltzmannQPolicy,
    ByAgent,
    Each,
    EpsGreedyQPolicy,
    EpsilonGreedy,
    GaussianWhiteNoiseProcess,
    Greedy,
    GumbelSoftmaxPolicy,
    OrnsteinUhlenbeckProcess,
    Sample,
    SoftmaxPolicy,
)
from etude.losses.distributions import Categorical, Deterministic, Gaussian

NONE = np.empty((0, 0))


def box(size):
    return Box(-1.0, 1.0, (size,), np.float32)


class Counting:
    """Actions are the steps since the episode's beginning, plus 100 times its own number."""

    def __init__(self, number):
        self.number, self.state_size = number, 1

    def of(self, columns):
        return self

    def draw(self, rng, steps, action_space):
        return rng.random((steps, 1), np.float32)

    def __call__(self, output, noise, step, state):
        state[:] = np.where(np.isnan(state), 0, state + 1)
        return Choice((state[:, 0] + 100 * self.number).astype(np.int64), {"seen": output[:, 0].copy()})


@pytest.fixture
def rng():
    return np.random.default_rng(8)


# --- one for each environment


def test_environments_take_the_explorers_in_turn_by_their_numbers(rng):
    each = Each([EpsGreedyQPolicy(0.0), EpsGreedyQPolicy(1.0)])
    columns = np.array([4, 7, 1, 0, 2])
    values = np.tile(np.array([[0, 0, 1]], np.float32), (5, 1))
    found = [
        each.of(columns)(values, each.draw(rng, 5, Discrete(3)), 0, np.empty((5, 0))).action == 2 for _ in range(300)
    ]
    best = np.mean(found, 0)
    assert (best[[0, 3, 4]] == 1).all()
    assert best[[1, 2]] == pytest.approx([1 / 3, 1 / 3], abs=0.12)


def test_rows_noise_and_memory_stay_with_their_environment():
    each, state = Each([Counting(0), Counting(1), Counting(2)]), np.full((5, 1), np.nan)
    dealt, output = each.of(np.array([4, 0, 2, 5, 1])), np.arange(10.0).reshape(5, 2)
    for t in range(3):
        choice = dealt(output, np.zeros((5, 1), np.float32), 0, state)
        assert choice.action.tolist() == [100 + t, t, 200 + t, 200 + t, 100 + t]
        assert choice.extras["seen"].tolist() == output[:, 0].tolist()
    assert (state == 2).all()
    state[2] = np.nan
    assert dealt(output[:3], np.zeros((3, 1), np.float32), 0, state[:3]).action.tolist() == [103, 3, 200]
    assert state[:, 0].tolist() == [3, 3, 0, 2, 2]


def test_an_environment_is_explored_alike_wherever_it_is(rng):
    each = Each([Boltzmann(0.5), Boltzmann(5.0)])
    values, noise = rng.normal(size=(6, 4)).astype(np.float32), rng.random((6, 1), np.float32)
    together = each(values, noise, 0, np.empty((6, 0))).action
    for i in range(6):
        alone = each.of(np.array([i]))
        assert alone is each.explorers[i % 2]
        assert alone(values[i : i + 1], noise[i : i + 1], 0, np.empty((1, 0))).action == together[i]


def test_trees_of_outputs_are_dealt_out(rng):
    each = Each([Sample(), Sample()])
    logits, noise = rng.normal(size=(4, 3)).astype(np.float32), rng.random((4, 1), np.float32)
    one, other = (e(Categorical(logits), noise, 0, np.empty((4, 0))) for e in (each, Sample()))
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_array_equal(one.extras["log_prob"], other.extras["log_prob"])


def test_explorers_that_remember_or_draw_differently_are_refused(rng):
    with pytest.raises(ConfigError, match="remember as many numbers.*here OrnsteinUhlenbeckProcess 2, AsIs 0"):
        Each([OrnsteinUhlenbeckProcess(0.1, size=2), AsIs()])
    with pytest.raises(ConfigError, match="draw as many numbers.*here EpsilonGreedy 2, Boltzmann 1"):
        Each([EpsilonGreedy(0.1), Boltzmann(1.0)]).draw(rng, 1, Discrete(2))
    with pytest.raises(ConfigError, match="at least one explorer"):
        Each([])


def test_actions_or_extras_of_different_kinds_are_refused():
    noise, values = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(ConfigError, match="Each: the explorers must make actions of one kind"):
        Each([EpsilonGreedy(0.1), GumbelSoftmaxPolicy()])(values, noise, 0, np.empty((2, 0)))


def test_combinations_are_equal_where_their_parts_are():
    policies = EpsGreedyQPolicy(0.1), EpsGreedyQPolicy(0.2)
    assert Each(policies) == Each(list(policies)) == pickle.loads(pickle.dumps(Each(policies)))
    assert Each(policies) != Each(policies[::-1])
    spaces = Discrete(2), Discrete(3)
    before, after = ByAgent(policies, spaces), ByAgent((EpsGreedyQPolicy(0.1), EpsGreedyQPolicy(0.2)), spaces)
    assert before == after == pickle.loads(pickle.dumps(after))
    policies[0].eps = 0.5
    assert before != after
    assert ByAgent(Greedy(), spaces) != ByAgent(Greedy(), spaces[:1])


# --- one for each agent


def test_discrete_actions_of_agents_are_joined_in_one_array(rng):
    joint = ByAgent([EpsGreedyQPolicy(0.0), SoftmaxPolicy()], [Discrete(3), Discrete(2)])
    output = np.array([[0, 1, 0], [0, 0, 1]], np.float32), np.array([[1, 0], [0, 1]], np.float32)
    noise = joint.draw(rng, 2, MultiDiscrete([3, 2]))
    assert noise.shape == (2, 3)
    action = joint(output, noise, 0, np.empty((2, 0))).action
    assert action.dtype == np.int64
    assert action.tolist() == [[1, 0], [2, 1]]


def test_one_explorer_serves_all_agents_with_noise_of_their_own(rng):
    spaces, n = [Discrete(2)] * 3, 20_000
    joint = ByAgent(BoltzmannQPolicy(), spaces)
    assert joint == ByAgent([BoltzmannQPolicy()], spaces)
    output = tuple(np.zeros((n, 2), np.float32) for _ in spaces)
    action = joint(output, joint.draw(rng, n, MultiDiscrete([2, 2, 2])), 0, np.empty((n, 0))).action
    found = np.bincount(action @ [4, 2, 1], minlength=8)
    assert float(((found - n / 8) ** 2 / (n / 8)).sum()) < 29.9  # 7 degrees of freedom, p = 1e-4


def test_box_actions_of_agents_are_put_one_after_the_other_and_positions_kept_apart(rng):
    processes = [OrnsteinUhlenbeckProcess(0.15, size=2), GaussianWhiteNoiseProcess(), AsIs()]
    processes.append(OrnsteinUhlenbeckProcess(0.15, size=1))
    joint = ByAgent(processes, [box(2), box(3), box(1), box(1)])
    assert joint.state_size == 3
    noise, state = joint.draw(rng, 2, box(7)), np.full((2, 3), np.nan)
    output = tuple(np.full((2, size), 10.0 * size, np.float32) for size in (2, 3, 1, 1))
    action = joint(output, noise, 0, state).action
    assert (action.shape, action.dtype) == ((2, 7), np.float32)
    np.testing.assert_allclose(action[:, [0, 1, 6]] - [20, 20, 10], state, atol=1e-5)
    np.testing.assert_allclose(action[:, 2:5], 30 + noise[:, 2:5], rtol=1e-6)
    assert (action[:, 5] == 10).all()
    alone = np.full((2, 2), np.nan)
    expected = processes[0](output[0], noise[:, :2], 0, alone).action
    np.testing.assert_array_equal(action[:, :2], expected)


def test_extras_of_agents_become_columns(rng):
    joint = ByAgent(Sample(), [box(1), box(2)])
    output = tuple(Gaussian(np.zeros((4, size), np.float32), np.zeros((4, size), np.float32)) for size in (1, 2))
    choice = joint(output, joint.draw(rng, 4, box(3)), 0, np.empty((4, 0)))
    expected = [output[0].log_prob(choice.action[:, :1]), output[1].log_prob(choice.action[:, 1:])]
    np.testing.assert_allclose(choice.extras["log_prob"], np.stack(expected, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("joint", "space"),
    [
        (ByAgent([EpsGreedyQPolicy(), SoftmaxPolicy()], [Discrete(3), Discrete(2)]), MultiDiscrete([3, 2])),
        (ByAgent([OrnsteinUhlenbeckProcess(0.1, size=2), GaussianWhiteNoiseProcess()], [box(2), box(3)]), box(5)),
    ],
    ids=["discrete", "box"],
)
def test_drawing_in_parts_gives_the_same_numbers_as_at_once(joint, space):
    whole, rng = joint.draw(np.random.default_rng(5), 8, space), np.random.default_rng(5)
    parts = [joint.draw(rng, steps, space) for steps in (3, 5)]
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_agents_may_have_an_explorer_for_each_environment():
    joint = ByAgent([Each([Counting(0), Counting(1)]), Counting(7)], [Discrete(1000), Discrete(1000)])
    assert joint.state_size == 2
    output, state = (np.zeros((3, 1)), np.zeros((3, 1))), np.full((3, 2), np.nan)
    action = joint.of(np.array([1, 2, 3]))(output, np.zeros((3, 2), np.float32), 0, state).action
    assert action.tolist() == [[100, 700], [0, 700], [100, 700]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByAgent([Greedy()] * 2, [Discrete(2)] * 3), "2 explorers for 3 agents. Give one for each agent"),
        (lambda: ByAgent(Greedy(), []), "0 agents"),
    ],
)
def test_agents_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("explorer", "spaces", "joint"),
    [
        (Greedy(), [Discrete(2), Discrete(3)], MultiDiscrete([3, 2])),
        (Greedy(), [Discrete(2), Discrete(3)], Discrete(6)),
        (AsIs(), [box(2), box(3)], box(6)),
        (AsIs(), [box(2), box(3)], MultiDiscrete([2, 3])),
    ],
)
def test_an_environment_with_other_actions_is_refused(explorer, spaces, joint, rng):
    with pytest.raises(ConfigError, match="the environment takes.*Give ByAgent the action spaces of its agents"):
        ByAgent(explorer, spaces).draw(rng, 1, joint)


def test_outputs_and_actions_that_do_not_fit_the_agents_are_refused():
    joint, values, none = ByAgent(Greedy(), [Discrete(2)] * 2), np.zeros((3, 2), np.float32), np.empty((3, 0))
    for output, given in [(values, r"an array of shape \(3, 2\)"), ((values,), "a tuple of 1")]:
        with pytest.raises(ConfigError, match=f"expects a tuple with the output for each of 2 agents.*{given}"):
            joint(output, none, 0, none)
    with pytest.raises(ConfigError, match=r"agent 1, whose actions are Discrete\(2\)"):
        ByAgent([Greedy(), GumbelSoftmaxPolicy()], [Discrete(2)] * 2)((values, values), np.zeros((3, 2)), 0, none)
    with pytest.raises(ConfigError, match=r"AsIs made float32 actions \[3, 2\] for agent 0.*expected \[3, 1\]"):
        ByAgent(AsIs(), [box(1)])((values,), none, 0, none)


# --- as it is


def test_outputs_may_be_actions_as_they_are(rng):
    noise = AsIs().draw(rng, 3, box(2))
    assert noise.shape == (3, 0)
    whole = np.array([2, 0, 1], np.int32)
    assert AsIs()(whole, noise, 0, NONE).action.dtype == np.int64
    assert AsIs()(whole, noise, 0, NONE).action.tolist() == [2, 0, 1]
    real = rng.normal(size=(3, 2)).astype(np.float32)
    assert AsIs()(real, noise, 0, NONE).action is real


def test_outputs_that_are_no_actions_are_refused(rng):
    noise = AsIs().draw(rng, 3, box(2))
    for output in (Deterministic(np.zeros((3, 2))), np.zeros((2, 2)), np.array(1.0)):
        with pytest.raises(
            ConfigError, match="one for each of 3 environments.*For the mode of a distribution use Greedy"
        ):
            AsIs()(output, noise, 0, NONE)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(NumericalError, match="environment 1 of 3"):
            AsIs()(np.array([[0], [bad], [0]], np.float32), noise, 0, NONE)


def test_agents_of_several_kinds_act_in_one_array_of_numbers():
    spaces = [Discrete(3), MultiDiscrete([2, 4]), box(2)]
    outputs = (np.array([2, 0]), np.array([[1, 3], [0, 2]]), np.array([[0.5, -1.0], [0.25, 0.0]], np.float32))
    action = ByAgent(AsIs(), spaces)(outputs, np.empty((2, 0)), 0, np.empty((2, 0))).action
    assert action.dtype == np.float32
    assert action.tolist() == [[2, 1, 3, 0.5, -1], [0, 0, 2, 0.25, 0]]
