"""Where episodes begin and end, compared with plain lists after random additions, trims, clears and restores."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_world import STACKS, VECTOR, World, code_of
from slow_views import Stored
from test_ring import LOG_PROB, random_steps, ring_and_world, trim

from etude.replay import Buffer, NStep, OneStep, Ring, Uniform
from etude.replay.ring import EDGE

KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (STACKS, 3)])


def random_operation(ring: Ring, world: World, rng: np.random.Generator) -> Ring:
    """Adds, trims, clears, or puts another ring of the same contents in the place of this one, which is returned."""
    draw = rng.random()
    if draw < 0.7:
        ring.add(random_steps(world, rng))
    elif draw < 0.85:
        trim(ring, world, int(rng.integers(0, 3 * ring.limit + 3)) if rng.random() < 0.6 else rng.integers(0, 9, 3))
    elif draw < 0.9:
        ring.clear()
        world.columns = [[], [], []]
        world.at = [[episode + 1, 0] for episode, _ in world.at]
    else:
        twin = Ring(ring.spaces, ring.capacity, 3, LOG_PROB, ring.frame_stack)
        twin.add(World(world.spaces, 3, np.random.default_rng(9)).step(4))  # what was there before is forgotten
        twin.episodes.after(np.arange(3))
        twin.restore(deepcopy(ring.state()))
        return twin
    return ring


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_stored_rows_of_an_episode_are_those_of_the_plain_python_record(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    for _ in range(20):
        ring = random_operation(ring, world, rng)
        if rng.random() < 0.4:  # the ages catch up with several operations at once
            continue
        rows = ring.locate(np.arange(len(ring)))
        codes, stored = code_of(ring.observation(rows)), Stored(world, ring.limit)
        assert ring.episodes.before(rows).tolist() == [len(stored.earlier(code)) for code in codes]
        assert ring.episodes.after(rows).tolist() == [len(stored.on(code)) - 1 for code in codes]
        path, real = ring.episodes.path(rows, 4)
        for code, there, seen in zip(codes, real.T, path.T, strict=True):
            expected = [row.code for row in stored.on(code)[:4]]
            assert there.tolist() == [True] * len(expected) + [False] * (4 - len(expected))
            assert code_of(ring.observation(seen)) == expected + expected[-1:] * (4 - len(expected))
        begins = ring.episodes.begins(rows)
        for code, yes in zip(codes, begins, strict=True):
            assert not yes or code[2] == 0
            assert yes or code[2] > 0 or not stored.earlier(code)  # forgotten at most at the oldest row of a column


def test_the_beginning_of_an_episode_is_known_unless_it_is_the_oldest_row_of_a_column():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), p_end=0.5, limit=9)
    for times in (4, 30):
        ring.add(world.step(times))
        rows = ring.locate(np.arange(len(ring)))
        inner = rows if times == 4 else rows[3:]
        began = [code[2] == 0 for code in code_of(ring.observation(inner))]
        assert ring.episodes.begins(inner).tolist() == began and 3 < sum(began) < len(began)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 500, 5000])
def test_the_end_is_found_at_any_distance(length):
    ring, world = Ring(VECTOR, 12_000, 2), World(VECTOR, 2, np.random.default_rng(0), p_end=0.0)
    for _ in range(20):
        ring.add(world.step(length, restart=(0, 1)) if length < 2000 else world.step(length // 4))
    rows = ring.locate(np.arange(len(ring)))
    codes = code_of(ring.observation(rows))
    last = {code[:2]: 0 for code in codes}
    for code in codes:
        last[code[:2]] = max(last[code[:2]], code[2])
    assert ring.episodes.after(rows).tolist() == [last[code[:2]] - code[2] for code in codes]


def test_a_ring_whose_episodes_nobody_asks_for_keeps_no_ages():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=9)
    for view in (OneStep(0.9), NStep(0.9, 3)):
        buffer = Buffer(ring, Uniform(), view, np.random.default_rng(0))
        buffer.add(world.step(4))
        buffer.sample(1, 4)
    assert ring.episodes._ages.size == 0
    ring.episodes.after(np.arange(3))
    assert len(ring.episodes._ages) == ring.rows and (ring.kind[-3:] == EDGE).all()
