"""What holds of a ring and of a sum tree after any number of changes."""

from __future__ import annotations

import numpy as np

from etude.replay.observations import FrameStacks
from etude.replay.ring import TERMINATED, TRUNCATED


def check_ring(ring):
    assert (ring.filled >= 0).all() and (ring.filled <= ring.limit).all() and (ring.head < ring.slots).all()
    assert ring._length == ring.filled.sum()
    # Columns of different fill are not treated as one
    assert not ring._even or ((ring.head == ring.head[0]).all() and (ring.filled == ring.filled[0]).all())
    # No pending observation is marked as the end of an episode
    assert not ring.kind[ring.head * ring.environments + np.arange(ring.environments)].any()
    whole = ring.observations
    if isinstance(whole, FrameStacks):
        assert_numbers(whole.start[whole.start >= 0], whole.starts)
        whole = whole.inner
    numbers = whole.final[np.flatnonzero(ring.kind & (TERMINATED | TRUNCATED))]
    assert_numbers(numbers, whole.finals)
    assert not set(numbers.tolist()) & set(whole.finals.free)


def assert_numbers(numbers, store):
    """Each observation beside the rows belongs to one of them."""
    assert len(np.unique(numbers)) == len(numbers) == len(store)


def check_tree(tree):
    """Each node is the sum of its children, and each value is one."""
    assert (tree._pairs[1:].sum(1) == tree.nodes[1 : tree._first]).all()
    leaves = tree.nodes[tree._first :]
    assert (np.isfinite(leaves) & (leaves >= 0)).all() and not leaves[tree.size :].any()
