"""Hindsight, alone and with every other view, against the definition in plain Python."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_world import GOALS, NESTED, PICTURES, VECTOR, World, code_of
from slow_views import Stored, reward_done
from test_episodes_of_a_ring import random_operation
from test_ring import LOG_PROB, assert_same, random_steps, ring_and_world

from etude.base.errors import ConfigError
from etude.base.spaces import Box, Dict, Discrete, Spaces
from etude.replay import Advantages, Buffer, Hindsight, NStep, OneStep, Prioritised, Ring, Sequences, Triplets, Uniform
from etude.replay.hindsight import GoalRewards

KINDS = pytest.mark.parametrize(("spaces", "stack"), [(GOALS, 1), (GOALS, 3), (PICTURES, 1), (PICTURES, 3)])


def generator(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_as_defined(batch, stored: Stored, goals: list, n: int, gamma: float, scale: float = 1.0) -> None:
    """A batch [1, M] of n-step transitions whose rows have new goals, or None, is what plain Python makes of it."""
    flat = lambda tree: {key: leaf[0] for key, leaf in tree.items()}  # noqa: E731
    codes = code_of(batch.observation)
    truth = [stored.transition(code, n, gamma, goal) for code, goal in zip(codes, goals, strict=True)]
    np.testing.assert_allclose(batch.reward[0], [scale * reward for reward, _, _ in truth], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.discount[0], [discount for _, discount, _ in truth], rtol=1e-6)
    desired = [
        stored.desired(code) if goal is None else stored.achieved(goal) for code, goal in zip(codes, goals, strict=True)
    ]
    for observation, at in ((batch.observation, codes), (batch.next_observation, [code for _, _, code in truth])):
        expected = stored.world.encode(at)
        assert_same(flat(observation), {**expected, "desired_goal": np.array(desired)})
    np.testing.assert_array_equal(batch.action[0], [stored.on(code)[0].action for code in codes])
    np.testing.assert_array_equal(batch.extras["log_prob"][0], np.float32([-stored.on(c)[0].reward for c in codes]))


@KINDS
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_transition_is_as_defined_after_random_operations(spaces, stack, strategy, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    n, share = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.8, 1.0]))
    inner = OneStep(0.9) if n == 1 else NStep(0.9, n)
    view, twin = Hindsight(inner, reward_done, generator(seed), strategy, share), generator(seed)
    inner.reward_scale = 2.0
    for _ in range(10):
        ring = random_operation(ring, world, rng)
        if not len(ring):
            continue
        rows = ring.locate(rng.integers(0, len(ring), (1, 20)))
        batch = view(ring, rows, np.ones(rows.shape, np.float32))
        stored = Stored(world, ring.limit)
        goals = stored.goals(code_of(batch.observation), strategy, share, twin)
        assert_as_defined(batch, stored, goals, n, 0.9, scale=2.0)


@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_prioritised_three_step_hindsight_of_dict_observations_is_as_defined(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, limit=40, p_end=0.1)
    view, twin = Hindsight(NStep(0.9, 3), reward_done, generator()), generator()
    buffer = Buffer(ring, Prioritised(ring.rows, alpha=0.7, beta=0.5), view, np.random.default_rng(seed))
    relabelled = 0
    for turn in range(12):
        buffer.add(random_steps(world, rng))
        if turn % 5 == 4:
            buffer.trim(30)
            world.columns = [rows[-10:] for rows in world.columns]
        batch = buffer.sample(1, 32)
        stored = Stored(world, ring.limit)
        codes = code_of(batch.observation)
        assert codes == code_of(ring.observation(batch.index))
        goals = stored.goals(codes, "future", 0.8, twin)
        assert_as_defined(batch, stored, goals, 3, 0.9)
        relabelled += sum(goal is not None for goal in goals)
        priority = buffer.selector.tree.values(batch.index)
        np.testing.assert_allclose(batch.weight, (priority / priority.min()) ** -0.5, rtol=1e-5)
        buffer.update(batch, rng.random((1, 32)))
    assert 250 < relabelled < 350  # 80 per cent of 384


def goals_of(spaces, view_class, strategy: str, count: int = 3000, share: float = 1.0):
    """One column of three episodes, of 4, 3 and 5 steps (the last one open); the goals of sampled rows as codes."""
    world = World(spaces, 1, np.random.default_rng(0), p_end=0.0)
    ring = Ring(spaces, 12, 1, LOG_PROB)
    for times in (4, 3, 5):
        ring.add(world.step(times, restart=(0,)))
    view = Hindsight(view_class, lambda achieved, goal: reward_done(achieved[..., :2], goal[..., :2]), generator(),
                     strategy, share)  # fmt: skip
    rows = ring.locate(np.random.default_rng(1).integers(0, len(ring), (1, count)))
    return view(ring, rows, np.ones(rows.shape, np.float32))


CODES = Spaces(  # the achieved goal tells where it was achieved
    Dict({name: Box(-np.inf, np.inf, (3,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}),
    Discrete(50),
)


@pytest.fixture
def coded(monkeypatch):
    """Worlds of CODES, whose desired goal is (-1, -1, -1)."""
    ordinary = World.encode

    def encode(self, codes):
        if self.spaces is not CODES:
            return ordinary(self, codes)
        vector = np.array(codes, np.float32).reshape(-1, 3)
        return {"observation": vector, "achieved_goal": vector, "desired_goal": np.full_like(vector, -1)}

    monkeypatch.setattr(World, "encode", encode)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_come_from_the_same_episode_later_and_evenly(coded, strategy):
    batch = goals_of(CODES, OneStep(0.9), strategy)
    observation = {key: leaf[0].astype(int) for key, leaf in batch.observation.items()}
    ends = {1: 4, 2: 3, 3: 5}  # episode -> its number of steps
    counts: dict = {}
    for (_, mine, t), (_, its, then) in zip(observation["observation"], observation["desired_goal"], strict=True):
        assert its == mine and {"future": t < then, "final": then == ends[mine], "episode": then >= 1}[strategy]
        counts.setdefault((mine, t), []).append(then)
    for (episode, t), times in counts.items():
        possible = {"future": range(t + 1, ends[episode] + 1), "final": [ends[episode]],
                    "episode": range(1, ends[episode] + 1)}[strategy]  # fmt: skip
        expected = len(times) / len(possible)
        chi = sum((times.count(then) - expected) ** 2 / expected for then in possible)
        assert set(times) == set(possible) and chi < 18  # 99.9 per cent point of 4 degrees of freedom: 18.5


def test_the_share_of_rows_with_new_goals(coded):
    for share in (0.0, 0.3, 0.8, 1.0):
        desired = goals_of(CODES, OneStep(0.9), "future", share=share).observation["desired_goal"]
        assert abs((desired[..., 0] != -1).mean() - share) < 0.03


@pytest.mark.parametrize("inner", [NStep(0.9, 3), Triplets(0.9, generator(1)), Sequences(0.9, 4, 1)])
def test_goals_come_from_the_same_episode_later_whatever_the_view(coded, inner):
    batch = goals_of(CODES, inner, "future")
    trees = (
        [*batch.observation, *batch.next_observation] if isinstance(batch.observation, tuple) else [batch.observation]
    )
    sampled = trees[0]["observation"]
    if isinstance(inner, Sequences):  # a run begins up to one step before the sampled row
        sampled = np.where(batch.extras["mask"][:, :, :1, None] == 1, sampled[:, :, 0:1], sampled[:, :, 1:2])
    for tree in trees:
        assert (tree["desired_goal"][..., 1] == sampled[..., 1]).all()
        assert (tree["desired_goal"][..., 2] > sampled[..., 2]).all()
        assert (tree["observation"][..., 1] == sampled[..., 1]).all()


def test_a_run_of_steps_ends_where_the_new_goal_is_reached():
    ring, world = ring_and_world(GOALS, 1, np.random.default_rng(3), limit=60, p_end=0.05)
    ring.add(world.step(60))
    view, twin = Hindsight(Sequences(0.9, 6, 2), reward_done, generator(), share=0.7), generator()
    rows = ring.locate(np.arange(len(ring)))[None]
    batch, stored = view(ring, rows, np.ones(rows.shape, np.float32)), Stored(world, 60)
    codes = code_of(ring.observation(rows))
    ended_early = 0
    for at, (code, goal) in enumerate(zip(codes, stored.goals(codes, "future", 0.7, twin), strict=True)):
        warm_up = stored.earlier(code)[-2:]
        counted = []
        for row in stored.on(code)[: 6 - len(warm_up)]:
            counted.append(stored.outcome(row, goal))
            if counted[-1][1]:
                break
        ended_early += len(counted) < len(stored.on(code)[: 6 - len(warm_up)])
        mask = [0] * len(warm_up) + [1] * len(counted)
        steps = [stored.outcome(row, goal) for row in warm_up] + counted
        padding = [0] * (6 - len(mask))
        assert batch.extras["mask"][0, at].tolist() == mask + padding
        np.testing.assert_allclose(batch.reward[0, at], [reward for reward, _, _ in steps] + padding, rtol=1e-6)
        discount = [0 if terminated else 0.9 for _, terminated, _ in steps]
        np.testing.assert_allclose(batch.discount[0, at], discount + padding, rtol=1e-6)
    assert ended_early > 20


def test_where_the_world_ended_short_of_the_new_goal_the_value_of_what_followed_counts():
    world = World(GOALS, 1, np.random.default_rng(0), p_end=0.0)
    steps = world.step(3)
    ended = np.array([[False], [False], [True]])
    final = {key: leaf[:1] for key, leaf in world.encode([(0, 0, 3)]).items()}
    ring = Ring(GOALS, 3, 1, LOG_PROB)
    ring.add(replace(steps, terminated=ended, final_observation=final, final_index=np.array([[2, 0]])))
    never = Hindsight(OneStep(0.9), lambda achieved, goal: (-1.0, False), generator(), share=1.0)
    at_once = Hindsight(OneStep(0.9), lambda achieved, goal: (0.0, True), generator(), share=1.0)
    rows, weight = np.arange(3)[None], np.ones((1, 3), np.float32)
    assert OneStep(0.9)(ring, rows, weight).discount.tolist() == [[np.float32(0.9), np.float32(0.9), 0]]
    batch = never(ring, rows, weight)
    assert (batch.discount == np.float32(0.9)).all() and (batch.reward == -1).all()
    assert code_of(batch.next_observation)[-1] == (0, 0, 3)
    assert (at_once(ring, rows, weight).discount == 0).all()
    three = Hindsight(NStep(0.9, 3), lambda achieved, goal: (0.0, True), generator(), share=1.0)(ring, rows, weight)
    assert (three.discount == 0).all() and code_of(three.next_observation) == [(0, 0, 1), (0, 0, 2), (0, 0, 3)]


def test_what_was_stored_stays_as_it_was():
    ring, world = ring_and_world(PICTURES, 3, np.random.default_rng(0), limit=9)
    ring.add(world.step(9))
    before = deepcopy(ring.state())
    buffer = Buffer(ring, Uniform(), Hindsight(NStep(0.9, 3), reward_done, generator(), share=1.0), generator())
    for _ in range(5):
        buffer.sample(2, 8)
    assert_same(ring.state(), before)


@pytest.mark.parametrize(
    "inner", [lambda: NStep(0.9, 2), lambda: Triplets(0.9, generator(7))], ids=["n-step", "triplets"]
)
def test_a_restored_buffer_goes_on_bit_for_bit(inner):
    def buffer() -> Buffer:
        ring = Ring(GOALS, 60, 3, LOG_PROB)
        return Buffer(ring, Uniform(), Hindsight(inner(), one_by_one, generator()), generator(2))

    def one_by_one(achieved, goal):
        assert achieved.shape == (2,)
        return reward_done(achieved, goal)

    world, one = World(GOALS, 3, np.random.default_rng(0), p_end=0.1), buffer()
    one.add(world.step(15))
    one.sample(2, 5)
    other = buffer()
    other.restore(deepcopy(one.state()))
    assert other.view.rewards.whole is False
    for _ in range(3):
        steps = world.step(4)
        one.add(steps), other.add(steps)
        left, right = one.sample(2, 5), other.sample(2, 5)
        for name in ("observation", "action", "reward", "discount", "next_observation", "index"):
            assert_same(getattr(left, name), getattr(right, name))


def pairs(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(seed).integers(0, 2, (2, count, width)).astype(np.float32))


def counted(function):
    """The function, and the shapes that it was called with."""
    shapes = []

    def call(achieved, goal):
        shapes.append(achieved.shape)
        return function(achieved, goal)

    return call, shapes


def whole(achieved, goal):
    far = np.abs(achieved - goal).sum(-1)
    return -far, far == 0


def raises_for_arrays(achieved, goal):
    return (0.0, True) if (achieved == goal).all() and abs(achieved[0] - goal[0]) < 1 else (-1.0, False)


def one_number(achieved, goal):
    return -float(np.linalg.norm(achieved - goal)), bool(np.array_equal(achieved, goal))


def sums_over_the_first_axis(achieved, goal):
    return -sum(abs(achieved - goal)), sum(abs(achieved - goal)) == 0


def takes_coordinates(achieved, goal):
    return -np.hypot(achieved[0] - goal[0], achieved[1] - goal[1]), achieved[0] == goal[0]


def compares_in_python(achieved, goal):
    return (0, True) if abs(achieved[1] - goal[1]) < 0.5 else (-1, False)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "function", [whole, raises_for_arrays, one_number, sums_over_the_first_axis, takes_coordinates, compares_in_python]
)
def test_rewards_are_those_of_single_pairs_however_the_function_is_written(function, count):
    """Three pairs of goals with three numbers each: sums over the wrong axis have the right shape."""
    achieved, goal = pairs(count, 3)
    call, shapes = counted(function)
    rewards = GoalRewards(call)
    for seed in range(3):
        achieved, goal = pairs(count, 3, seed)
        reward, done = rewards(achieved, goal, ())
        expected = [function(a, g) for a, g in zip(achieved, goal, strict=True)]
        np.testing.assert_allclose(reward, [float(reward) for reward, _ in expected], rtol=1e-6)
        assert done.tolist() == [bool(done) for _, done in expected]
        assert reward.dtype == np.float32 and done.dtype == bool
    assert rewards.whole == (function is whole)
    assert shapes[-1] == ((count, 3) if function is whole else (3,))


@pytest.mark.parametrize("width", [7, 8, 9, 10])
def test_a_sum_over_the_wrong_axis_shows_although_every_goal_is_reached_at_first(width):
    """As many pairs as a goal has numbers, all of the first ones equal: the sums would be those of the pairs."""
    rewards = GoalRewards(sums_over_the_first_axis)
    rewards(*np.zeros((2, width, width), np.float32), ())
    achieved, goal = pairs(width, width)
    reward, _ = rewards(achieved, goal, ())
    np.testing.assert_array_equal(reward, -np.abs(achieved - goal).sum(1))


def test_a_function_that_mixes_the_pairs_of_an_array_is_called_pair_by_pair():
    def relative(achieved, goal):
        far = np.abs(achieved - goal)
        return -far.sum(-1) / (far.max() + far.mean()), far.sum(-1) == 0

    achieved, goal = np.random.default_rng(0).normal(size=(2, 7, 3))
    reward, _ = GoalRewards(relative)(achieved, goal, ())
    np.testing.assert_allclose(reward, [relative(a, g)[0] for a, g in zip(achieved, goal, strict=True)], rtol=1e-6)


def test_a_function_that_takes_arrays_is_called_once_for_all_steps_of_all_rows():
    ring, world = ring_and_world(GOALS, 1, np.random.default_rng(0), limit=50)
    ring.add(world.step(50))
    call, shapes = counted(reward_done)
    buffer = Buffer(ring, Uniform(), Hindsight(NStep(0.9, 3), call, generator(), share=1.0), generator())
    buffer.sample(2, 8)
    shapes.clear()
    buffer.sample(2, 8)
    assert shapes == [(3 * 2 * 8, 2)]


@pytest.mark.parametrize("answer", [-1.0, (-1.0, True, 0), (np.zeros(2), True), (0.0, np.zeros(2)), None, ("x", True)])
def test_an_answer_that_is_no_reward_and_end_is_refused(answer):
    with pytest.raises(ConfigError, match=r"returned .* for one pair .* Return \(reward, done\)"):
        GoalRewards(lambda achieved, goal: answer)(*pairs(4, 3), ())


def test_an_error_of_the_function_itself_is_shown():
    def broken(achieved, goal):
        raise KeyError("my own")

    with pytest.raises(KeyError, match="my own"):
        GoalRewards(broken)(*pairs(4, 3), ())


def test_rewards_of_several_agents_can_be_relabelled():
    world = World(GOALS, 3, np.random.default_rng(0))
    ring = Ring(GOALS, 30, 3, LOG_PROB, reward_shape=(2,))
    steps = world.step(10)
    ring.add(replace(steps, reward=np.stack([steps.reward, -steps.reward], -1)))
    both = lambda achieved, goal: (np.stack([reward_done(achieved, goal)[0]] * 2, -1), reward_done(achieved, goal)[1])  # noqa: E731
    rows = ring.locate(np.arange(30))[None]
    one = Hindsight(NStep(0.9, 3), both, generator())(ring, rows, np.ones((1, 30), np.float32))
    assert one.reward.shape == (1, 30, 2)
    stored = Stored(world, 10)
    codes = code_of(one.observation)
    for at, (code, goal) in enumerate(zip(codes, stored.goals(codes, "future", 0.8, generator()), strict=True)):
        expected = stored.transition(code, 3, 0.9, goal)[0]
        np.testing.assert_allclose(one.reward[0, at], [expected, -expected if goal is None else expected], rtol=1e-5)


def test_observations_without_goals_are_refused():
    for spaces, word in ((VECTOR, r"got Box\(3,\)"), (NESTED, "got Dict")):
        buffer = Buffer(Ring(spaces, 9, 3), Uniform(), Hindsight(OneStep(0.9), reward_done, generator()), generator())
        buffer.add(World(spaces, 3, np.random.default_rng(0)).step(3))
        with pytest.raises(ConfigError, match=rf"achieved_goal.*{word}.*leave hindsight out"):
            buffer.sample(1, 2)
    unlike = Dict({**GOALS.observation.spaces, "desired_goal": Box(0, 1, (3,), np.float32)})
    with pytest.raises(ConfigError, match="shapes differ"):
        Hindsight(OneStep(0.9), reward_done, generator())(
            Ring(Spaces(unlike, Discrete(2)), 9), np.zeros((1, 1), int), None
        )


def test_wrong_settings_are_refused():
    for settings_ in ({"strategy": "furthest"}, {"share": 1.5}, {"share": -0.1}):
        with pytest.raises(ConfigError, match="expected a strategy of future, final, episode and a share from 0 to 1"):
            Hindsight(OneStep(0.9), reward_done, generator(), **settings_)
    with pytest.raises(ConfigError, match="advantages"):
        Hindsight(Advantages(0.9, 0.9, len), reward_done, generator())


def test_gamma_and_reward_scale_are_those_of_the_inner_view():
    inner = NStep(0.5, 2)
    view = Hindsight(inner, reward_done, generator())
    view.adjust({"gamma": 0.7, "reward_scale": 3.0})
    assert (inner.gamma, inner.reward_scale) == (0.7, 3.0)
    view.adjust({"gamma": 0.7})
    assert inner.reward_scale == 1.0
