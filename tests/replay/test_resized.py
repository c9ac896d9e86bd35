"""What a buffer saved goes on in one of another capacity, for other environments, or with another selector or view."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_ring
from recorded_world import NESTED, STACKS, VECTOR, World
from test_ring import LOG_PROB, assert_all_transitions_are_true, random_steps, ring_and_world

from etude.base.checks import Stored
from etude.base.errors import CheckpointError
from etude.base.spaces import Spaces, Tokens
from etude.replay import Buffer, OneStep, Prioritised, Ring, Uniform

KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])


def buffer_of(ring, selector=Uniform):
    chosen = Prioritised(ring.rows, 0.6, initial_error=0.5) if selector is Prioritised else selector()
    return Buffer(ring, chosen, OneStep(0.9), np.random.default_rng(0))


def restored(buffer, state):
    buffer.check_state(Stored(state, "replay"))
    buffer.restore(deepcopy(state))
    check_ring(buffer.ring)
    return buffer


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_ring_of_another_capacity_holds_the_newest_rows_of_each_column_and_goes_on(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    for _ in range(8):
        ring.add(random_steps(world, rng))
    other = Ring(spaces, 3 * int(rng.integers(1, 30)) + 2, 3, LOG_PROB, stack)
    buffer = restored(buffer_of(other), buffer_of(ring).state())
    assert_all_transitions_are_true(other, world, min(ring.limit, other.limit))
    buffer.add(random_steps(world, rng))
    buffer.add(world.step(other.limit))
    check_ring(other)
    assert_all_transitions_are_true(other, world)


@KINDS
@pytest.mark.parametrize("environments", [1, 2, 5])
def test_a_ring_of_other_environments_holds_the_same_episodes(spaces, stack, environments):
    rng = np.random.default_rng(environments)
    ring, world = ring_and_world(spaces, stack, rng, p_end=0.2, limit=30)
    for _ in range(20):
        ring.add(random_steps(world, rng))
    other = Ring(spaces, 200 * environments, environments, LOG_PROB, stack)
    restored(buffer_of(other), buffer_of(ring).state())
    assert_all_transitions_are_true(other, world, ring.limit)
    assert other.filled.max() - other.filled.min() <= 20, "episodes are dealt out evenly"
    newest = other.ahead(other.head * environments + np.arange(environments), -1)[other.filled > 0]
    assert (other.kind[newest] > 0).all(), "no open episode goes on with another one"
    small = Ring(spaces, 10 * environments, environments, LOG_PROB, stack)
    restored(buffer_of(small), buffer_of(ring).state())
    assert small.full


@KINDS
def test_long_episodes_of_a_full_ring_keep_their_rows_in_shorter_columns(spaces, stack):
    ring, world = ring_and_world(spaces, stack, np.random.default_rng(0), p_end=0.0, limit=32)
    ring.add(world.step(32))
    for environments, limit in ((8, 12), (8, 9), (2, 48)):
        other = Ring(spaces, limit * environments, environments, LOG_PROB, stack)
        restored(buffer_of(other), buffer_of(ring).state())
        assert len(other) == min(96, limit * environments)
        assert_all_transitions_are_true(other, world, min(32, limit * environments // 3))
        other.add(World(spaces, environments, np.random.default_rng(1)).step(3))
        check_ring(other)


def test_priorities_move_with_their_rows():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=8)
    buffer = buffer_of(ring, Prioritised)
    buffer.add(world.step(13))
    rows = ring.locate(np.arange(24))
    buffer.selector.update(rows[None], np.arange(24.0)[None])
    errors = dict(zip(map(tuple, ring.observation(rows).tolist()), range(24), strict=True))
    for limit, environments in ((5, 3), (20, 3), (30, 2)):
        other = Ring(VECTOR, limit * environments, environments, LOG_PROB)
        found = restored(buffer_of(other, Prioritised), buffer.state())
        kept = other.locate(np.arange(len(other)))
        assert len(kept) == min(24, limit * environments)
        assert found.selector.error[kept].tolist() == [errors[tuple(o)] for o in other.observation(kept).tolist()]
        assert found.selector.largest[0] == 23


def test_a_selector_that_was_another_begins_anew_and_knows_all_rows():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=8)
    uniform = buffer_of(ring)
    uniform.add(world.step(6))
    used = buffer_of(Ring(VECTOR, 24, 3, LOG_PROB), Prioritised)
    used.add(World(VECTOR, 3, np.random.default_rng(1)).step(8))
    found = restored(used, uniform.state())
    assert np.count_nonzero(found.selector.error == 0.5) == 18 and len(found.sample(1, 4).index[0]) == 4
    again = restored(buffer_of(Ring(VECTOR, 24, 3, LOG_PROB)), found.state())
    assert_all_transitions_are_true(again.ring, world)


def test_other_rows_are_refused_as_before():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=8)
    ring.add(world.step(4))
    state = buffer_of(ring).state()
    for other in (Ring(NESTED, 60, 2, LOG_PROB), Ring(VECTOR, 60, 3, {})):
        with pytest.raises(CheckpointError, match="does not fit this ring"):
            buffer_of(other).check_state(Stored(state, "replay"))
    tokens = Spaces(Tokens(("<pad>", *map(str, range(50_000))), 4), VECTOR.action)
    with pytest.raises(CheckpointError, match="does not fit this ring: .*tokens") as refused:
        buffer_of(Ring(tokens, 60, 3, {})).check_state(Stored(state, "replay"))
    assert len(str(refused.value)) < 2_000
    state["ring"]["built"]["capacity"] = 2**40
    with pytest.raises(CheckpointError, match="replay"):
        buffer_of(Ring(VECTOR, 60, 3, LOG_PROB)).check_state(Stored(state, "replay"))
