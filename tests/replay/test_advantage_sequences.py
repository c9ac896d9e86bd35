"""Parts of rollouts with advantages: what is remembered, where episodes begin, and what is bootstrapped."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from recorded_world import VECTOR, World, code_of

from etude.base.errors import ConfigError
from etude.replay import Advantages, AdvantageSequences, Buffer, ColumnEpochs, Ring

TIMES, ENVIRONMENTS, LENGTH = 12, 5, 4
GAMMA, LAMBDA, SCALE = 0.9, 0.8, 0.5


def remembered(codes):
    """The memory of each step, which tells the step and is not zeros at any."""
    return np.asarray(codes, np.float32) + 1


def worth(code):
    return 3.0 * code[0] - 2.0 * code[1] + code[2]


def value(observation, state):
    """Not a number where what is remembered is not of the same step as what is observed."""
    codes = code_of(observation)
    following = state + np.float32([0, 0, 1])
    right = (state == remembered(codes)).all(1)
    return np.where(right, [worth(code) for code in codes], np.nan), following


@pytest.fixture
def filled():
    world = World(VECTOR, ENVIRONMENTS, np.random.default_rng(0))
    kept = {name: (shape, np.dtype(np.float32)) for name, shape in (("recurrent_state", (3,)), ("log_prob", ()))}
    ring = Ring(VECTOR, TIMES * ENVIRONMENTS, ENVIRONMENTS, kept)
    view = AdvantageSequences(LENGTH, Advantages(GAMMA, LAMBDA, value))
    view.view.reward_scale = SCALE
    buffer = Buffer(ring, ColumnEpochs(LENGTH), view, np.random.default_rng(1))
    for part in (7, 5):
        steps = world.step(part)
        codes = np.reshape(code_of(steps.observation.reshape(-1, 3)), (part, ENVIRONMENTS, 3))
        extras = {"recurrent_state": remembered(codes), "log_prob": np.float32(codes.sum(-1))}
        buffer.add(dataclasses.replace(steps, extras=extras))
    return world, buffer


def slow_advantages(rows):
    """By the recursion of generalised advantage estimation, backwards along one column."""
    found, ahead = [], 0.0
    for i in reversed(range(len(rows))):
        row = rows[i]
        ended = row.terminated or row.truncated
        following = 0.0 if row.terminated else worth(row.next_code)
        ahead = SCALE * row.reward + GAMMA * following - worth(row.code) + (0.0 if ended else GAMMA * LAMBDA * ahead)
        found.append(ahead)
    return found[::-1]


def test_a_pass_takes_each_part_of_each_column_once_with_what_was_remembered_and_its_advantages(filled):
    world, buffer = filled
    batch = buffer.sample(5, 3)  # 5 columns of 3 parts
    assert batch.observation.shape == (5, 3, LENGTH, 3) and batch.weight.shape == (5, 3, LENGTH)
    assert batch.extras["recurrent_state"].shape == (5, 3, 3)
    expected = [slow_advantages(column) for column in world.columns]
    seen, begun = set(), 0
    for i in np.ndindex(5, 3):
        start, column = divmod(int(batch.index[i][0]), ENVIRONMENTS)
        seen.add((column, start))
        rows = world.columns[column][start : start + LENGTH]
        assert code_of(batch.observation[i]) == [row.code for row in rows]
        np.testing.assert_array_equal(batch.extras["recurrent_state"][i], remembered(rows[0].code))
        np.testing.assert_allclose(batch.reward[i], [SCALE * row.reward for row in rows], rtol=1e-6)
        np.testing.assert_allclose(batch.extras["log_prob"][i], [sum(row.code) for row in rows])
        advantages = expected[column][start : start + LENGTH]
        np.testing.assert_allclose(batch.extras["advantage"][i], advantages, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.extras["value"][i], [worth(row.code) for row in rows])
        np.testing.assert_allclose(batch.extras["return"][i], np.add(advantages, batch.extras["value"][i]), rtol=1e-4)
        ends = [row.terminated or row.truncated for row in rows]
        assert batch.extras["first"][i].tolist() == [0.0, *map(float, ends[:-1])]
        begun += sum(ends[:-1])
    assert seen == {(column, start) for column in range(ENVIRONMENTS) for start in (0, 4, 8)}
    rows = [row for column in world.columns for row in column]
    assert begun > 3 and any(row.terminated for row in rows)
    assert any(row.truncated and not row.terminated for row in rows)


def test_rows_that_would_make_a_shorter_part_are_the_oldest_and_left_out(filled):
    world, buffer = filled
    buffer.selector, buffer.view.length = ColumnEpochs(5), 5
    batch = buffer.sample(1, 10)
    assert sorted(set(batch.index[0, :, 0] // ENVIRONMENTS)) == [2, 7]


def test_more_parts_than_there_are_are_refused(filled):
    with pytest.raises(ConfigError, match="16 unrolls was asked for, but there are 15 of 5 environments"):
        filled[1].sample(1, 16)
