"""Batches, number by number: against hand-worked values and a plain-Python record."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_world import NESTED, STACKS, VECTOR, World, code_of
from test_ring import LOG_PROB, assert_same, random_steps, ring_and_world

from etude.base.data import Steps
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.losses.returns import discounted_returns
from etude.replay import Advantages, Buffer, Epochs, NStep, OneStep, Ring, Uniform

SCALAR = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(2))
KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])


def one_column(values, rewards, terminated=(), truncated=(), final=99.0) -> Steps:
    """T steps of one environment whose observations are `values` [T + 1]; every final observation is `final`."""
    times = len(rewards)
    ends = sorted({*terminated, *truncated})
    return Steps(
        observation=np.float32(values[:-1]).reshape(times, 1, 1),
        action=np.zeros((times, 1), np.int64),
        reward=np.float32(rewards).reshape(times, 1),
        terminated=np.isin(np.arange(times), terminated)[:, None],
        truncated=np.isin(np.arange(times), truncated)[:, None],
        next_observation=np.float32(values[-1:]).reshape(1, 1),
        final_observation=np.full((len(ends), 1), final, np.float32),
        final_index=np.array([(t, 0) for t in ends], np.int64).reshape(-1, 2),
        columns=np.zeros(1, np.int64),
        restarted=np.zeros(1, bool),
    )


def view_of_all(view, steps: Steps):
    ring = Ring(SCALAR, len(steps))
    ring.add(steps)
    return view(ring, np.arange(len(steps)), np.ones(len(steps), np.float32))


def first(observations: np.ndarray) -> np.ndarray:
    return observations[:, 0]


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("gamma", [0.98, 0.99])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("terminates", [True, False])
def test_n_steps_are_cut_where_an_episode_ends(n, gamma, end, terminates):
    """The cases of Stable-Baselines3's test_n_step_replay: a reward of 1 in every step."""
    steps = one_column(range(7), [1.0] * 6, *((end,), ()) if terminates else ((), (end,)))
    batch = view_of_all(NStep(gamma, n), steps)
    count = min(n, end + 1)
    np.testing.assert_allclose(batch.reward[0], sum(gamma**i for i in range(count)), rtol=1e-6)
    np.testing.assert_allclose(batch.discount[0], 0.0 if terminates and count == end + 1 else gamma**count, rtol=1e-6)
    assert batch.next_observation[0] == (99.0 if count == end + 1 else count)


def test_three_steps_worked_by_hand():
    """Rewards 1, 2, 4, 8, 16 at gamma 0.5; the third step terminates, the column's head is after the fifth."""
    batch = view_of_all(NStep(0.5, 3), one_column([10, 11, 12, 13, 14, 15], [1, 2, 4, 8, 16], terminated=[2]))
    np.testing.assert_array_equal(batch.reward, [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16])
    np.testing.assert_array_equal(batch.discount, [0, 0, 0, 0.25, 0.5])
    np.testing.assert_array_equal(first(batch.next_observation), [99, 99, 99, 15, 15])


def test_truncation_bootstraps_and_termination_does_not():
    steps = one_column([1, 2, 3, 4], [0, 0, 0], terminated=[0], truncated=[1])
    for view in (OneStep(0.9), NStep(0.9, 1)):
        batch = view_of_all(view, steps)
        np.testing.assert_array_equal(batch.discount, np.float32([0, 0.9, 0.9]))
        np.testing.assert_array_equal(first(batch.next_observation), [99, 99, 4])
    extras = view_of_all(Advantages(0.9, 0.0, first), steps).extras
    np.testing.assert_allclose(extras["return"], [0, 0.9 * 99, 0.9 * 4], rtol=1e-6)


def test_an_end_that_is_both_does_not_bootstrap():
    batch = view_of_all(OneStep(0.9), one_column([1, 2, 3], [0, 0], terminated=[0], truncated=[0]))
    np.testing.assert_array_equal(batch.discount, np.float32([0, 0.9]))


GAE = {
    1.0: ([-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3, 2, 1, 0, -4.9]),
    0.7: ([-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1, 0, -4.9]),
    0.4: ([0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1, 0, -4.9]),
}


@pytest.mark.parametrize("lambda_", GAE)
def test_advantages_have_the_golden_values_of_rlax(lambda_):
    for gamma, values, rewards, ends, golden in (
        (0.99, [1, 4, -3, -2, -1, -1], [0, 0, 1, 0, -0.5], (), GAE[lambda_][0]),
        (0.9, [-3, -2, -1, 0, 5, -1], [0, 0, 0, 0, 1], (3,), GAE[lambda_][1]),
    ):
        extras = view_of_all(Advantages(gamma, lambda_, first), one_column(values, rewards, ends)).extras
        np.testing.assert_allclose(extras["advantage"], golden, atol=2e-3)
        np.testing.assert_allclose(extras["value"], values[:-1])
        np.testing.assert_allclose(extras["return"], extras["advantage"] + extras["value"], rtol=1e-5)


def test_discounted_returns_in_numpy_give_the_golden_returns_of_rlax():
    rewards = np.array([[1, 0, -1, 0, 1], [0.5, 0.8, -0.7, 0, 2.1]]).T
    discounts = np.array([[0.5, 0.9, 1, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]]).T
    values = np.array([[3, 1, 5, -5, 3], [-1.7, 1.2, 2.3, 2.2, 2.7]]).T
    for lambda_, golden in (
        (0.75, [[1.6460547, 0.7228125, 0.7375, 0.65, 3.4], [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99]]),
        (1.0, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
    ):
        terms = rewards + discounts * (1 - lambda_) * values
        terms[-1] = rewards[-1] + discounts[-1] * values[-1]
        np.testing.assert_allclose(discounted_returns(terms, lambda_ * discounts, np.zeros(2)).T, golden, rtol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 100])
def test_discounted_returns_in_numpy_equal_the_plain_recursion(length):
    terms, factors = np.random.default_rng(length).random((2, length, 3))
    expected = np.zeros((length + 1, 3))
    for t in reversed(range(length)):
        expected[t] = terms[t] + factors[t] * expected[t + 1]
    np.testing.assert_allclose(discounted_returns(terms, factors, np.zeros(3)), expected[:-1], rtol=1e-12)


@KINDS
@pytest.mark.parametrize("seed", range(8))
def test_n_step_transitions_equal_the_plain_python_record(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng)
    view = NStep(0.9, int(rng.integers(1, 6)))
    view.reward_scale = 2.0
    for _ in range(10):
        ring.add(random_steps(world, rng))
        rows = ring.locate(np.arange(len(ring)))
        batch = view(ring, rows, np.ones(len(rows), np.float32))
        kept = world.kept(ring.limit)
        truth = [n_steps(world, *kept[code], 0.9, view.n) for code in code_of(batch.observation)]
        np.testing.assert_allclose(batch.reward, [2 * reward for reward, _, _ in truth], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount, [discount for _, discount, _ in truth], rtol=1e-6)
        assert_same(batch.observation, world.encode(code_of(batch.observation)))
        assert_same(batch.next_observation, world.encode([code for _, _, code in truth]))


def n_steps(world: World, column: int, position: int, gamma: float, n: int) -> tuple:
    """(discounted sum, discount, code of the observation that it applies to)."""
    total, discount = 0.0, 1.0
    for row in world.columns[column][position : position + n]:
        total, discount = total + discount * row.reward, discount * gamma
        if row.terminated or row.truncated:
            break
    return total, 0.0 if row.terminated else discount, row.next_code


@KINDS
@pytest.mark.parametrize("seed", range(8))
def test_advantages_equal_the_plain_python_record(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng)
    calls = []

    def value(observations) -> np.ndarray:
        calls.append(len(code_of(observations)))
        return np.array([value_of(code) for code in code_of(observations)], np.float32)

    view = Advantages(0.9, 0.8, value)
    view.reward_scale = 0.5
    for turn in range(6):
        ring.add(random_steps(world, rng))
        rows = ring.locate(rng.permutation(len(ring)))
        batch = view(ring, rows, np.ones(len(rows), np.float32))
        assert len(calls) == turn + 1
        kept = world.kept(ring.limit)
        truth = [advantage(world, *kept[code]) for code in code_of(batch.observation)]
        np.testing.assert_allclose(batch.extras["advantage"], truth, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.extras["value"], [value_of(code) for code in code_of(batch.observation)])
        assert set(batch.extras) == {"advantage", "value", "return", "log_prob"}
        assert batch.next_observation is None


def value_of(code: tuple) -> float:
    return float(np.sin(code[0] + 3.0 * code[1] + 0.7 * code[2]))


def advantage(world: World, column: int, position: int) -> float:
    total, factor = 0.0, 1.0
    for row in world.columns[column][position:]:
        following = 0.0 if row.terminated else value_of(row.next_code)
        total += factor * (0.5 * row.reward + 0.9 * following - value_of(row.code))
        factor *= 0.9 * 0.8
        if row.terminated or row.truncated:
            break
    return total


def endless(truncated_every: int, mishandled: bool) -> Ring:
    """A reward of 1 for ever, in episodes that a clock ends."""
    times = 600
    ends = list(range(truncated_every - 1, times, truncated_every))
    steps = one_column([0.0] * (times + 1), [1.0] * times, truncated=ends, final=0.0)
    if mishandled:
        steps = replace(steps, terminated=steps.truncated, truncated=steps.terminated)
    ring = Ring(SCALAR, times)
    ring.add(steps)
    return ring


def fixed_point(view_for_value, ring: Ring) -> float:
    """Iterate value = mean target."""
    value, rows = 0.0, np.arange(len(ring))
    for _ in range(400):
        batch = view_for_value(value)(ring, rows, np.ones(len(ring), np.float32))
        target = batch.extras.get("return", batch.reward + batch.discount * value)
        value = float(target.mean(dtype=np.float64))
    return value


@pytest.mark.parametrize(
    "view",
    [
        lambda value: OneStep(0.95),
        lambda value: NStep(0.95, 3),
        lambda value: Advantages(0.95, 0.9, lambda observations: np.full(len(observations), value)),
    ],
    ids=["one-step", "n-step", "advantages"],
)
def test_a_reward_for_ever_is_worth_1_over_1_minus_gamma_unless_truncation_is_mishandled(view):
    assert abs(fixed_point(view, endless(10, mishandled=False)) - 20) < 0.01
    assert abs(fixed_point(view, endless(10, mishandled=True)) - 20) > 5


def test_gamma_lambda_and_reward_scale_take_effect_at_the_next_sampling():
    ring, rows, weight = endless(10, mishandled=False), np.arange(600), np.ones(600, np.float32)
    for view in (OneStep(0.5), NStep(0.5, 1)):
        view(ring, rows, weight)
        view.gamma, view.reward_scale = 0.25, 3.0
        batch = view(ring, rows, weight)
        assert (batch.discount == 0.25).all() and (batch.reward == 3.0).all()
    view = Advantages(0.5, 0.5, lambda observations: np.zeros(len(observations)))
    view(ring, rows, weight)
    view.gamma, view.gae_lambda, view.reward_scale = 1.0, 1.0, 2.0
    np.testing.assert_allclose(view(ring, rows, weight).extras["return"][:10], 2.0 * np.arange(10, 0, -1))


def test_values_are_asked_for_once_for_a_rollout_and_again_after_more_steps():
    calls = []
    view = Advantages(0.9, 0.9, lambda observations: calls.append(len(observations)) or np.zeros(len(observations)))
    buffer = Buffer(Ring(VECTOR, 60, 3, LOG_PROB), Epochs(), view, np.random.default_rng(0))
    world = World(VECTOR, 3, np.random.default_rng(0), p_end=0.0)
    buffer.add(world.step(10))
    buffer.sample(2, 5), buffer.sample(2, 5)
    assert calls == [30 + 4]
    buffer.add(world.step(10))
    buffer.sample(2, 5)
    assert calls == [30 + 4, 60 + 4]


def test_values_are_asked_for_in_few_different_numbers_so_that_engines_need_not_compile_anew():
    calls = []
    view = Advantages(0.9, 0.9, lambda observations: calls.append(len(observations)) or np.zeros(len(observations)))
    buffer = Buffer(Ring(VECTOR, 36, 3, LOG_PROB), Epochs(), view, np.random.default_rng(0))
    world = World(VECTOR, 3, np.random.default_rng(0), p_end=0.2)
    for _ in range(50):
        buffer.add(world.step(12))
        buffer.sample(1, 4)
        buffer.clear()
    assert set(calls) == {36 + 4, 36 + 8, 36 + 16}


def test_a_value_of_the_wrong_shape_is_refused():
    with pytest.raises(ConfigError, match=r"shape \(4, 1\) for 4 observations"):
        view_of_all(Advantages(0.9, 0.9, lambda observations: observations), one_column([1, 2, 3, 4], [0, 0, 0]))


@pytest.mark.parametrize(
    "view", [OneStep(0.9), NStep(0.9, 2), Advantages(0.9, 0.9, lambda o: np.zeros(len(o["code"])))]
)
def test_every_array_of_a_sample_is_k_by_n(view):
    ring, world = ring_and_world(STACKS, 3, np.random.default_rng(0), limit=9)
    buffer = Buffer(ring, Uniform(), view, np.random.default_rng(0))
    buffer.add(world.step(9))
    batch = buffer.sample(4, 5)
    for array in (batch.action, batch.reward, batch.discount, batch.weight, batch.index, *batch.extras.values()):
        assert array.shape == (4, 5)
    assert batch.observation["image"].shape == (4, 5, 3, 2, 1) and batch.observation["image"].dtype == np.uint8
    assert {array.dtype for array in (batch.reward, batch.discount, batch.weight, *batch.extras.values())} == {
        np.dtype(np.float32)
    }
