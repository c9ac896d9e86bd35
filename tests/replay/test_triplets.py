"""Triplets i < k < j: always of one episode, evenly drawn, and exactly what the environments did."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_world import GOALS, STACKS, VECTOR, World, code_of
from slow_views import Stored, reward_done
from test_episodes_of_a_ring import random_operation
from test_ring import LOG_PROB, assert_same, ring_and_world

from etude.base.errors import ConfigError
from etude.replay import Buffer, Hindsight, Prioritised, Ring, Triplets, Uniform


def generator(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def times_of(batch) -> list[tuple]:
    """(code of s_i, code of s_k, code of the second s_k, code of s_j) of each triplet."""
    return list(zip(*(code_of(tree) for tree in (*batch.observation, *batch.next_observation)), strict=True))


@pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (STACKS, 3)])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_triplets_are_true_after_random_operations(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    view = Triplets(0.9, generator(seed))
    view.reward_scale = 2.0
    for _ in range(10):
        ring = random_operation(ring, world, rng)
        stored = Stored(world, ring.limit)
        if not any(len(rows) > 1 for rows in stored.episodes.values()):
            continue
        rows = ring.locate(rng.integers(0, len(ring), (2, 9)))
        batch = view(ring, rows, np.ones(rows.shape, np.float32))
        assert batch.index is rows
        for at, (i, k, again, j) in enumerate(times_of(batch)):
            assert again == k and i[:2] == k[:2] == j[:2] and i[2] < k[2] < j[2]
            steps = [stored.on(i)[0], stored.on(k)[0]]
            assert j in [row.next_code for row in stored.on(k)]
            place = np.unravel_index(at, rows.shape)
            np.testing.assert_allclose(batch.reward[place], [2 * row.reward for row in steps], rtol=1e-6)
            np.testing.assert_allclose(
                batch.discount[place], [0 if row.terminated else 0.9 for row in steps], rtol=1e-6
            )
            np.testing.assert_allclose(batch.extras["log_prob"][place], [-row.reward for row in steps], rtol=1e-6)
            action = batch.action[place] if spaces is STACKS else batch.action[place][:, 0] * 50
            np.testing.assert_allclose(action, [row.action for row in steps], rtol=1e-6)
        for tree in (*batch.observation, *batch.next_observation):
            flat = (
                tree.reshape(-1, 3) if spaces is VECTOR else {k: v.reshape(-1, *v.shape[2:]) for k, v in tree.items()}
            )
            assert_same(flat, world.encode(code_of(tree)))


def test_a_triplet_starts_at_the_sampled_row_where_two_later_times_are_stored():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=30, p_end=0.2)
    ring.add(world.step(30))
    rows = ring.locate(np.arange(len(ring)))[None]
    batch, stored = Triplets(0.9, generator())(ring, rows, rows), Stored(world, 30)
    moved = replaced = 0
    for code, (i, *_) in zip(code_of(ring.observation(rows)), times_of(batch), strict=True):
        if len(stored.on(code)) >= 2:
            assert i == code
        elif stored.earlier(code):
            assert i == (*code[:2], code[2] - 1)
            moved += 1
        else:
            replaced += 1
    assert moved > 5 and replaced > 2


def test_all_pairs_of_later_times_are_drawn_equally_often():
    ring, world = Ring(VECTOR, 5), World(VECTOR, 1, np.random.default_rng(0), p_end=0.0)
    ring.add(world.step(3, restart=(0,)))
    ring.add(world.step(2))  # one episode of five steps, six observations
    rows = np.zeros((1, 5000), np.int64)
    rows[0, 4000:] = 3
    triplets = [(k[2], j[2]) for _, k, _, j in times_of(Triplets(0.9, generator())(ring, rows, rows))]
    possible = [(k, j) for k in range(1, 5) for j in range(k + 1, 6)]
    expected = 4000 / len(possible)
    assert set(triplets[:4000]) == set(possible)
    chi = sum((triplets[:4000].count(pair) - expected) ** 2 / expected for pair in possible)
    assert chi < 27.9  # 99.9 per cent point of 9 degrees of freedom
    assert set(triplets[4000:]) == {(4, 5)}


def short_episodes(count: int, long: int) -> tuple[Ring, World]:
    """Episodes of one step each, and one of `long` steps among them."""
    ring, world = Ring(VECTOR, 4000), World(VECTOR, 1, np.random.default_rng(0), p_end=0.0)
    for episode in range(count):
        ring.add(world.step(long if episode == count // 2 else 1, restart=(0,)))
    return ring, world


@pytest.mark.parametrize("count", [3, 3000])
def test_episodes_of_fewer_than_three_observations_are_never_used(count):
    ring, _ = short_episodes(count, long=3)
    buffer = Buffer(ring, Uniform(), Triplets(0.9, generator()), generator())
    triplets = times_of(buffer.sample(20, 8))
    assert {i[1] for i, *_ in triplets} == {count // 2 + 1}
    assert {(i[2], k[2], j[2]) for i, k, _, j in triplets} == {(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)}


def test_where_all_episodes_are_too_short_the_error_says_so():
    ring, _ = short_episodes(50, long=1)
    buffer = Buffer(ring, Uniform(), Triplets(0.9, generator()), generator())
    with pytest.raises(ConfigError, match=r"none of the episodes in the replay \(50 steps\).* 3 observations"):
        buffer.sample(1, 4)


def test_the_rows_that_were_asked_for_get_the_priorities():
    ring, world = Ring(VECTOR, 20), World(VECTOR, 1, np.random.default_rng(0), p_end=0.5)
    buffer = Buffer(ring, Prioritised(ring.rows, 1.0), Triplets(0.9, generator()), generator())
    buffer.add(world.step(20))
    for _ in range(30):
        batch = buffer.sample(1, 8)
        buffer.update(batch, np.zeros((1, 8)))
    assert (buffer.selector.error[:20] == 0).all()  # also those of last steps and of short episodes


@pytest.mark.parametrize("seed", range(6))
def test_hindsight_of_triplets_takes_goals_from_the_episode_that_is_used(seed):
    ring, world = ring_and_world(GOALS, 3, np.random.default_rng(seed), limit=30, p_end=0.4)
    ring.add(world.step(30))
    rows = ring.locate(np.arange(len(ring)))[None]
    batch = Hindsight(Triplets(0.9, generator()), reward_done, generator(), share=1.0)(ring, rows, rows)
    assert batch.index is rows
    stored = Stored(world, 30)
    for at, (i, k, _, _) in enumerate(times_of(batch)):
        goal = batch.observation[0]["desired_goal"][0, at]
        later = [row.next_code for row in stored.on(i)]
        assert any((stored.achieved(code) == goal).all() for code in later)
        for tree in (*batch.observation, *batch.next_observation):
            assert (tree["desired_goal"][0, at] == goal).all()
        for step, code in enumerate((i, k)):
            reward, done = reward_done(stored.achieved(stored.on(code)[0].next_code), goal)
            assert batch.reward[0, at, step] == np.float32(reward)
            assert batch.discount[0, at, step] == (0 if done else np.float32(0.9))


def test_a_restored_view_draws_the_same_triplets():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=30, p_end=0.2)
    ring.add(world.step(30))
    view, twin = Triplets(0.9, generator()), Triplets(0.9, generator(9))
    rows = ring.locate(np.arange(len(ring)))[None]
    view(ring, rows, rows)
    twin.restore(deepcopy(view.state()))
    assert times_of(view(ring, rows, rows)) == times_of(twin(ring, rows, rows))


def test_every_array_is_k_by_n_by_two_and_rewards_may_be_of_several_agents():
    ring, world = (
        Ring(VECTOR, 30, 3, LOG_PROB, reward_shape=(4,)),
        World(VECTOR, 3, np.random.default_rng(0), p_end=0.0),
    )
    steps = world.step(10)
    ring.add(replace(steps, reward=np.arange(120, dtype=np.float32).reshape(10, 3, 4)))
    batch = Buffer(ring, Uniform(), Triplets(0.9, generator()), generator()).sample(2, 5)
    assert batch.reward.shape == (2, 5, 2, 4) and batch.action.shape == (2, 5, 2, 2)
    assert batch.discount.shape == batch.extras["log_prob"].shape == (2, 5, 2)
    assert all(tree.shape == (2, 5, 3) for tree in (*batch.observation, *batch.next_observation))
    first = np.array([(code[2] * 3 + code[0]) * 4 for code in code_of(batch.observation[1])], np.float32)
    np.testing.assert_array_equal(batch.reward[:, :, 1, 0].reshape(-1), first)


def test_gamma_is_taken_over():
    view = Triplets(0.5, generator())
    view.adjust({"gamma": 0.7})
    assert view.gamma == 0.7
