"""A ring is the sum of its changes, whatever was added, cut, trimmed and cleared between two of them."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_ring
from recorded_world import NESTED, STACKS, VECTOR
from test_episodes_of_a_ring import random_operation
from test_ring import LOG_PROB, assert_all_transitions_are_true, random_steps, ring_and_world

from etude.base import trees
from etude.base.checks import Stored
from etude.base.errors import CheckpointError
from etude.replay import Ring
from etude.replay.ring_changes import RingChanges, covers, ring_state

KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])


def rebuilt(ring, log):
    """A ring from as few of the newest changes as hold all of its rows."""
    count = next((n for n in range(1, len(log)) if covers(log[::-1][:n])), len(log))
    state = ring_state(log[-count:])
    twin = Ring(ring.spaces, ring.capacity, ring.environments, LOG_PROB, ring.frame_stack)
    twin.check_state(Stored(state, "ring"))
    twin.restore(state)
    check_ring(twin)
    return twin


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_newest_changes_give_the_ring_back(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    changes, log, taken = RingChanges(ring, saved=False), [], False
    for _ in range(16):
        before, ring = ring, random_operation(ring, world, rng)
        if ring is not before:  # as where another process goes on
            changes = RingChanges(ring, saved=taken)
        taken = rng.random() < 0.6
        if taken:
            log.append(deepcopy(changes.take()))
            twin = rebuilt(ring, log)
            assert_all_transitions_are_true(twin, world)
            for name in ("head", "filled", "kind", "action", "reward"):
                assert np.array_equal(twin.state()[name], ring.state()[name]), name


def test_a_cut_between_two_changes_is_in_the_later_one():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), p_end=0.0, limit=20)
    changes, log = RingChanges(ring, saved=False), []
    for _ in range(3):
        ring.add(world.step(4))
        log.append(changes.take())
        ring.cut(np.arange(3))
    log.append(changes.take())
    assert np.array_equal(rebuilt(ring, log).kind, ring.kind) and ring.kind.any()


@KINDS
def test_changes_hold_the_rows_that_are_new_and_little_more(spaces, stack):
    rng = np.random.default_rng(1)
    ring, world = ring_and_world(spaces, stack, rng, limit=200)
    changes = RingChanges(ring, saved=False)
    changes.take()
    for _ in range(3):
        before = ring.written.sum()
        for _ in range(6):
            ring.add(world.step(int(rng.integers(1, 5))))
        patch = changes.take()
        assert len(patch["rows"]) <= ring.written.sum() - before + 3 * 2
        stores = [array for path, array in trees.items(patch["arrays"]) if path.endswith("numbers")]
        assert all(len(numbers) <= len(patch["rows"]) for numbers in stores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda patch: patch.pop("head"), "a table without 'head'"),
        (lambda patch: patch.update(rows=np.array([10**6])), "replay/rows"),
        (lambda patch: patch["arrays"].update(kind=np.zeros(1, np.uint8)), "do not fit each other"),
        (lambda patch: patch["arrays"]["observations"]["finals"].update(used=-3), "do not fit each other"),
        (lambda patch: patch.update(arrays=3), "do not fit each other"),
    ],
)
def test_changes_that_were_altered_are_refused(change, message):
    rng = np.random.default_rng(2)
    ring, world = ring_and_world(VECTOR, 1, rng, limit=20)
    ring.add(random_steps(world, rng))
    patch = RingChanges(ring, saved=False).take()
    change(patch)
    with pytest.raises(CheckpointError, match=message):
        ring_state([patch])
