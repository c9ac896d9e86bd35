"""Which rows are drawn, and how often."""

import numpy as np
import pytest
from recorded_world import VECTOR, World, code_of

from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.replay import Buffer, Epochs, NewFirst, OneStep, Ring, Uniform


def filled(*chunks: tuple[int, list[int]], limit: int = 20) -> Ring:
    ring, world = Ring(VECTOR, 3 * limit, 3), World(VECTOR, 3, np.random.default_rng(0))
    for times, columns in chunks:
        ring.add(world.step(times, columns))
    return ring


EVEN = filled((33, [0, 1, 2]))
UNEVEN = filled((7, [0, 1, 2]), (29, [1]), (4, [0, 1]))
RINGS = pytest.mark.parametrize("ring", [EVEN, UNEVEN], ids=["even columns", "uneven columns"])


def chi_square(counts: np.ndarray) -> float:
    """In standard deviations from its mean, where all counts have the same expectation."""
    expected, free = counts.mean(), len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free)


@RINGS
def test_uniform_draws_every_row_equally_often(ring):
    rows, weight = Uniform().select(ring, 100, 600, np.random.default_rng(1))
    drawn, counts = np.unique(rows, return_counts=True)
    np.testing.assert_array_equal(drawn, np.sort(ring.locate(np.arange(len(ring)))))
    assert abs(chi_square(counts)) < 4
    assert rows.shape == weight.shape == (100, 600) and (weight == 1).all()


@RINGS
def test_each_pass_of_epochs_is_another_permutation(ring):
    size = len(ring)
    rows, _ = Epochs().select(ring, 3 * size, 1, np.random.default_rng(0))
    passes = rows.reshape(3, size)
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), np.sort(ring.locate(np.arange(size))))
    assert (passes[0] != passes[1]).any() and (passes[1] != passes[2]).any()


def test_epochs_make_no_ragged_batch_and_draw_no_row_twice_in_a_pass():
    rows, weight = Epochs().select(EVEN, 9, 18, np.random.default_rng(0))  # 60 rows: 3 batches of 18 in a pass
    assert rows.shape == weight.shape == (9, 18)
    assert all(len(np.unique(one)) == 54 for one in rows.reshape(3, 54))


@RINGS
def test_new_rows_stand_in_front_of_one_batch_with_weight_1_the_oldest_first(ring):
    selector, rng, wanted = NewFirst(ring.rows, 2), np.random.default_rng(0), ring.locate(np.arange(len(ring)))[:9]
    selector.added(ring, wanted)
    rows, weight = selector.select(ring, 2, 5, rng)
    np.testing.assert_array_equal(weight, [[1, 1, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(rows[:, :2].reshape(-1), wanted[:4])
    assert set(rows.reshape(-1)) <= set(ring.locate(np.arange(len(ring))))
    other = NewFirst(ring.rows, 2)
    other.check_state(Stored(selector.state(), "selector"))
    other.restore(selector.state())
    for each in (selector, other):  # the sixth is overwritten, and the last three batches hold fewer new rows
        each.removed(ring, wanted[5:6])
        rows, weight = each.select(ring, 4, 3, np.random.default_rng(1))
        np.testing.assert_array_equal(rows[weight == 1], wanted[[4, 6, 7, 8]])
        np.testing.assert_array_equal(weight.sum(1), [2, 2, 0, 0])
        assert not len(each.state()["new"])


@RINGS
def test_what_is_new_stays_new_in_a_buffer_of_other_environments(ring):
    buffer = Buffer(ring, NewFirst(ring.rows, 2), OneStep(0.9), np.random.default_rng(0))
    newest = ring.locate(np.arange(3), np.ones(3, np.int64))
    buffer.selector.added(ring, newest)
    other = Ring(VECTOR, 40, 2)
    restored = Buffer(other, NewFirst(other.rows, 2), OneStep(0.9), np.random.default_rng(0))
    restored.check_state(Stored(buffer.state(), "replay"))
    restored.restore(buffer.state())
    rows, weight = restored.selector.select(other, 4, 2, np.random.default_rng(0))
    found = rows[weight == 1]
    np.testing.assert_array_equal(np.sort(other.reward[found]), np.sort(ring.reward[newest]))


def test_the_rows_that_epochs_leave_out_differ_from_pass_to_pass():
    rows, _ = Epochs().select(EVEN, 3 * 400, 18, np.random.default_rng(0))
    _, counts = np.unique(rows, return_counts=True)
    assert len(counts) == 60 and np.ptp(counts) < 80  # each sits out one pass in ten: 360 of 400, give or take 6


def test_batches_larger_than_the_rollout_are_refused():
    with pytest.raises(ConfigError, match="batch of 61 .* holds 60 steps"):
        Epochs().select(EVEN, 1, 61, np.random.default_rng(0))


def test_an_empty_replay_cannot_be_sampled():
    buffer = Buffer(Ring(VECTOR, 10), Uniform(), OneStep(0.9), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="empty"):
        buffer.sample(1, 1)


def test_one_seed_gives_one_sample():
    def samples(seed: int) -> list:
        buffer = Buffer(UNEVEN, Uniform(), OneStep(0.9), np.random.default_rng(seed))
        return code_of(buffer.sample(3, 7).observation) + code_of(buffer.sample(2, 2).observation)

    assert samples(1) == samples(1) != samples(2)


def test_a_selector_is_told_what_is_written_and_the_errors_of_what_it_drew():
    class Listener(Uniform):
        def __init__(self):
            self.written, self.gone, self.errors = [], [], []

        def added(self, ring, rows):
            self.written.append(np.sort(np.arange(ring.rows)[rows]).tolist())

        def removed(self, ring, rows):
            self.gone.append(np.sort(np.arange(ring.rows)[rows]).tolist())

        def update(self, rows, errors, ratios=None):
            self.errors.append((rows, errors, ratios))

    listener, world = Listener(), World(VECTOR, 3, np.random.default_rng(0))
    buffer = Buffer(Ring(VECTOR, 30, 3), listener, OneStep(0.9), np.random.default_rng(0))
    buffer.add(world.step(2))
    buffer.add(world.step(1, [0, 2]))
    assert listener.written == [[0, 1, 2, 3, 4, 5], [6, 8]]
    batch = buffer.sample(2, 3)
    buffer.update(batch, np.ones((2, 3)))
    assert listener.errors[0][0] is batch.index and listener.errors[0][1].shape == (2, 3)
    buffer.update(batch, np.ones((2, 3)), np.full((2, 3), 2.0))
    assert listener.errors[0][2] is None and listener.errors[1][2].sum() == 12
    buffer.trim(6)  # two of each column: environments 0 and 2 forget their first
    buffer.trim(6)
    assert listener.gone == [[0, 2]]
    buffer.clear()
    assert {3, 4, 5, 6, 8} <= set(listener.gone[-1])


def test_a_selector_is_told_of_all_rows_that_stay_of_more_steps_than_the_ring_holds():
    told = []

    class Listener(Uniform):
        def added(self, ring, rows):
            told.append(np.sort(np.arange(ring.rows)[rows]))

    for times in (10, 11, 19, 20):
        buffer = Buffer(Ring(VECTOR, 30, 3), Listener(), OneStep(0.9), np.random.default_rng(0))
        buffer.add(World(VECTOR, 3, np.random.default_rng(0)).step(times))
        np.testing.assert_array_equal(told[-1], np.sort(buffer.ring.locate(np.arange(30))))
