"""Runs of rows for recurrent networks, step by step against lists of episodes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_world import NESTED, STACKS, VECTOR, World, code_of
from slow_views import Stored
from test_episodes_of_a_ring import random_operation
from test_ring import LOG_PROB, ring_and_world

from etude.base import trees
from etude.base.errors import ConfigError
from etude.replay import Buffer, ReturnSequences, Ring, Sequences, Uniform


def runs_of(tree, length: int) -> list[list[tuple]]:
    """The codes in observations [k, n, L, ...], by run."""
    codes = code_of(tree)
    return [codes[start : start + length] for start in range(0, len(codes), length)]


@pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_runs_are_true_after_random_operations(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    length = int(rng.integers(1, 7))
    view = Sequences(0.9, length, int(rng.integers(0, length)))
    view.reward_scale = 2.0
    for _ in range(10):
        ring = random_operation(ring, world, rng)
        if not len(ring):
            continue
        rows = ring.locate(rng.integers(0, len(ring), (2, 6)))
        batch, stored = view(ring, rows, np.ones(rows.shape, np.float32)), Stored(world, ring.limit)
        here, then = runs_of(batch.observation, length), runs_of(batch.next_observation, length)
        assert batch.index is rows and batch.weight.shape == (2, 6)
        for at, code in enumerate(code_of(ring.observation(rows))):
            place = np.unravel_index(at, rows.shape)
            before = stored.earlier(code)[len(stored.earlier(code)) - min(view.burn_in, len(stored.earlier(code))) :]
            run = (before + stored.on(code))[:length]
            padding = [0.0] * (length - len(run))
            assert here[at] == [row.code for row in run] + [run[-1].code] * len(padding)
            assert then[at] == [row.next_code for row in run] + [run[-1].next_code] * len(padding)
            np.testing.assert_allclose(batch.reward[place], [2 * row.reward for row in run] + padding, rtol=1e-6)
            discount = [0 if row.terminated else 0.9 for row in run]
            np.testing.assert_allclose(batch.discount[place], discount + padding, rtol=1e-6)
            mask = [0] * len(before) + [1] * (len(run) - len(before))
            assert batch.extras["mask"][place].tolist() == mask + padding
            np.testing.assert_allclose(batch.extras["log_prob"][place][: len(run)], [-row.reward for row in run])
            assert not batch.extras["first"][place][1:].any()
        for tree in (batch.observation, batch.next_observation):
            expected = world.encode(code_of(tree))
            trees.map(lambda got, want: np.testing.assert_array_equal(got.reshape(want.shape), want), tree, expected)


def one_episode(*lengths: int, limit: int = 20) -> Ring:
    """One column with episodes of these lengths, the last one open."""
    ring, world = Ring(VECTOR, limit, 1, LOG_PROB), World(VECTOR, 1, np.random.default_rng(0), p_end=0.0)
    for length in lengths:
        ring.add(world.step(length, restart=(0,)))
    return ring


def batch_of(ring: Ring, view: Sequences):
    rows = ring.locate(np.arange(len(ring)))[None]
    return view(ring, rows, np.ones(rows.shape, np.float32))


def test_two_episodes_worked_by_hand():
    """Episodes of 3 and 2 steps in runs of 4, of which up to 1 step warms up."""
    batch = batch_of(one_episode(3, 2), Sequences(0.9, 4, burn_in=1))
    times = [[code[2] for code in run] for run in runs_of(batch.observation, 4)]
    assert times == [[0, 1, 2, 2], [0, 1, 2, 2], [1, 2, 2, 2], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert batch.extras["mask"][0].tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]
    assert batch.extras["first"][0, :, 0].tolist() == [1, 1, 0, 1, 1]
    assert (batch.discount[0] > 0).tolist() == [
        [True, True, True, False],
        [True, True, True, False],
        [True, True, False, False],
        [True, True, False, False],
        [True, True, False, False],
    ]


def test_a_run_that_starts_with_its_episode_counts_all_of_its_steps():
    batch = batch_of(one_episode(10), Sequences(0.9, 5, burn_in=3))
    assert batch.extras["mask"][0].sum(1).tolist() == [5, 4, 3, 2, 2, 2, 2, 2, 2, 1]
    assert batch.extras["mask"].max(2).min() == 1  # every sampled row is learned from


def test_no_run_joins_two_episodes_and_first_says_where_one_begins():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), p_end=0.3, limit=40)
    ring.add(world.step(35))
    batch = batch_of(ring, Sequences(0.9, 6, burn_in=2))
    for run, first in zip(runs_of(batch.observation, 6), batch.extras["first"][0], strict=True):
        assert len({code[:2] for code in run}) == 1
        assert first.tolist() == [float(run[0][2] == 0)] + [0.0] * 5


def test_where_the_beginning_was_overwritten_first_does_not_claim_it():
    batch = batch_of(one_episode(12, limit=8), Sequences(0.9, 3))
    assert runs_of(batch.observation, 3)[0][0] == (0, 1, 4)
    assert not batch.extras["first"].any()


def test_arrays_are_k_by_n_by_length_and_rewards_may_be_of_several_agents():
    ring, world = Ring(STACKS, 30, 3, LOG_PROB, 3, reward_shape=(2,)), World(STACKS, 3, np.random.default_rng(0))
    steps = world.step(10)
    ring.add(replace(steps, reward=np.stack([steps.reward, -steps.reward], -1)))
    batch = Buffer(ring, Uniform(), Sequences(0.9, 4), np.random.default_rng(0)).sample(2, 5)
    assert batch.reward.shape == (2, 5, 4, 2) and batch.observation["image"].shape == (2, 5, 4, 3, 2, 1)
    arrays = (batch.action, batch.discount, *batch.extras.values())
    assert all(array.shape == (2, 5, 4) for array in arrays)
    assert {array.dtype for array in (batch.reward, batch.discount, *batch.extras.values())} == {np.dtype(np.float32)}
    real = batch.extras["mask"] == 1
    np.testing.assert_array_equal(batch.reward[real][:, 0], -batch.reward[real][:, 1])
    assert not batch.reward[~real].any() and batch.reward[real].all()


def test_of_memories_there_is_the_one_of_the_first_step():
    steps = World(VECTOR, 1, np.random.default_rng(0), p_end=0.0).step(9)
    state = np.arange(18, dtype=np.float32).reshape(9, 1, 2)
    ring = Ring(VECTOR, 20, 1, LOG_PROB | {"recurrent_state": ((2,), np.float32)})
    ring.add(replace(steps, extras=steps.extras | {"recurrent_state": state}))
    batch = batch_of(ring, Sequences(0.9, 4, burn_in=2))
    assert batch.extras["log_prob"].shape == (1, 9, 4)
    assert batch.extras["recurrent_state"][0].tolist() == state[[0, 0, 0, 1, 2, 3, 4, 5, 6], 0].tolist()


@pytest.mark.parametrize(("length", "burn_in"), [(0, 0), (3, 3), (3, -1)])
def test_wrong_lengths_are_refused(length, burn_in):
    with pytest.raises(ConfigError, match="expected at least 1 step, of which fewer than all"):
        Sequences(0.9, length, burn_in)


def test_gamma_is_taken_over():
    view = Sequences(0.5, 3)
    view.adjust({"gamma": 0.7})
    assert view.gamma == 0.7


def test_sequences_with_returns_hold_what_is_earned_from_each_step_on():
    ring = one_episode(3, 2, 4)  # the last one is open
    rows = ring.locate(np.arange(len(ring)))[None]
    batch = ReturnSequences(1.0, 3)(ring, rows, np.ones(rows.shape, np.float32))
    plain = batch_of(ring, Sequences(1.0, 3))
    reward = ring.reward[rows[0]].tolist()
    ends = [3, 3, 3, 5, 5, 9, 9, 9, 9]
    mask = batch.extras["mask"]
    for i, end in enumerate(ends):
        count = min(3, end - i)
        assert mask[0, i].tolist() == [1] * count + [0] * (3 - count)
        earned = [sum(reward[i + t : end]) for t in range(count)]
        np.testing.assert_allclose(batch.extras["return"][0, i][:count], earned, rtol=1e-5)
        assert batch.extras["time"][0, i][:count].tolist() == [(0, 1, 2, 0, 1, 0, 1, 2, 3)[i] + t for t in range(count)]
    best = max(sum(reward[:3]), sum(reward[3:5]), sum(reward[5:]))
    np.testing.assert_allclose(batch.extras["best_return"], np.full((1, 9), best), rtol=1e-5)
    for name in ("action", "reward", "discount", "weight"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(plain, name))
